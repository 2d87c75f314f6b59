"""Beyond the paper: what noise and sampled gradients do to extrapolation."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate

from offspan.baselines import extrapolating_controller
from offspan.controllers import Linear
from offspan.measures import normalized_optimality
from offspan.problems.lqr import identity
from offspan.problems.variants import Noisy
from offspan.rollout import expected_cost, lqr_gradient
from offspan.states import basis, sphere
from offspan.theory.claims import Claim, Settings, at_least, equal, random_lqr
from offspan.training import Reinforce, TwoPoint, train_lqr

DRAWS = 4000


def decay_rate(m: Any, horizon: int) -> Any:
    """−(dm/dt)/ς² = 2 Σ_{k=1}^{H−1} k (H − k) m^{2k−1} of an unseen direction of the identity, e ↦ m e, under gradient flow."""
    k = np.arange(1, horizon)
    return 2 * np.sum(k * (horizon - k) * np.asarray(m, float)[..., None] ** (2 * k - 1), axis=-1)


def identity_measure(horizon: int, scaled_time: float) -> float:
    """E_opt(K) / E_opt(K_no-ext) = m² of the noisy identity, by its differential equation, at ς²t; 4(H−1) is its rate in the end."""
    solution = scipy.integrate.solve_ivp(lambda _, m: -decay_rate(m[0], horizon)[None], (0.0, scaled_time), [1.0], rtol=1e-10, atol=1e-14)
    return float(solution.y[0, -1] ** 2)


def least_expected_cost(problem: Noisy, x0s: np.ndarray) -> float:
    """tr(Q Σ_0) + H tr(QW): what no controller can lower, for R = 0."""
    Q, P = np.asarray(problem.problem.Q), np.asarray(problem.process)  # pyright: ignore[reportAttributeAccessIssue]
    return float(np.mean(np.sum(x0s @ Q * x0s, axis=1)) + problem.horizon * np.trace(Q @ P @ P.T))


def noisy_identity(settings: Settings) -> Iterator[Claim]:
    """On the identity with noise ς in each step, every unseen direction e ↦ m e shrinks by dm/dt = −2ς² Σ_{k=1}^{H−1} k(H−k) m^{2k−1}
    under gradient flow. So E_opt(K)/E_opt(K_no-ext) = m² depends on ς²t alone, and decays as e^{−4(H−1)ς²t} in the end."""
    D, H, seen = settings.dim, settings.horizon, basis(settings.dim, 1)
    problem = identity(D, horizon=H)
    noisy = Noisy(problem, process=0.3)
    for m in (1.0, 0.7, 0.1, 0.001):
        gradient = lqr_gradient(noisy, jnp.diag(jnp.full(D, m - 1.0)), seen)
        predicted = 0.3**2 * decay_rate(m, H)
        yield equal("∂E J/∂K_dd of an unseen d over its sum", [(1.0, np.diag(gradient)[1:] / predicted)], "covariance recursion")
        yield equal("and its other entries", [(0.0, gradient - jnp.diag(jnp.diag(gradient)))], "covariance recursion")
    time, rate = 1 / (H * (H**2 - 1)), min(1e-3, 1 / (H * (H + 1)))  # about one time constant; no step of a seen direction overshoots
    for iterations in (2_500, 10_000):  # the same ς²t
        std = (time / (rate * iterations)) ** 0.5
        K = train_lqr(Noisy(problem, process=std), seen, learning_rate=rate, iterations=iterations).K
        text, predicted = f"E_opt(K)/E_opt(K_no-ext) at ς²t = 1/(H(H²−1)), ς = {std:.2g}", identity_measure(H, time)
        yield equal(text, [(predicted, normalized_optimality(problem, K, seen))], "training", 1e-4)


def only_minimiser(settings: Settings) -> Iterator[Claim]:
    """With noise W ≻ 0 in each step, H ≥ 2, Q ≻ 0, R = 0 and B invertible, K_ext = −B⁻¹A is the only minimiser of E J, whatever S:
    E J ≥ tr(Q Σ_0) + H tr(QW) + (H−1) tr(Q M W Mᵀ), as Σ_h ⪰ W for h ≥ 1, and M = A + BK vanishes for K_ext alone."""
    for key in settings.keys("beyond:noise_minimiser"):
        key_problem, key_noise, key_states, key_other = jax.random.split(key, 4)
        problem, D = random_lqr(key_problem, settings), settings.dim
        noisy = Noisy(problem, process=0.3 * jax.random.normal(key_noise, (D, D)))
        X = np.asarray(sphere(key_states, 2, D))
        K, least = extrapolating_controller(problem), least_expected_cost(noisy, X)
        yield equal("E J(K_ext) over tr(Q Σ_0) + H tr(QW)", [(1.0, expected_cost(noisy, K, X) / least)], "covariance recursion")
        other = K + 0.1 * jax.random.normal(key_other, K.shape)
        M, W = np.asarray(problem.A + problem.B @ other), np.asarray(noisy.process @ noisy.process.T)  # pyright: ignore[reportOptionalMemberAccess, reportOptionalOperand]
        excess = (problem.horizon - 1) * np.trace(np.asarray(problem.Q) @ M @ W @ M.T)
        text = "E J(K) − E J(K_ext) against (H−1) tr(Q M W Mᵀ), K random"
        yield at_least(text, [(excess, float(expected_cost(noisy, other, X)) - least)], "covariance recursion")


def noise_gradient(settings: Settings) -> Iterator[Claim]:
    """Noise ς in the controls adds ς² ∇ Σ_{j<H} (H−j) tr(BᵀM^{jᵀ}Q M^j B) to ∇J, whatever S (M = A + BK, R = 0): the bias of REINFORCE
    against ∇J, which trains the directions that S never visits. It is the noise ςB in the states."""
    std = 0.3
    for key in settings.keys("beyond:noise_gradient"):
        key_problem, key_gain, key_states, key_other = jax.random.split(key, 4)
        problem = random_lqr(key_problem, settings)
        K = 0.1 * jax.random.normal(key_gain, problem.A.shape)
        A, B, Q = (np.asarray(M) for M in (problem.A, problem.B, problem.Q))
        predicted = std**2 * added_gradient(A, B, Q, np.asarray(K), problem.horizon)
        scale, route = np.abs(predicted).max(), "adjoint and covariance recursions, random S"
        for name, count in {"S random": 2, "S another": 1}.items():
            X = sphere(key_states if count == 2 else key_other, count, settings.dim)
            exact = lqr_gradient(problem, K, X)
            in_controls = lqr_gradient(Noisy(problem, control=std), K, X) - exact
            in_states = lqr_gradient(Noisy(problem, process=std * problem.B), K, X) - exact
            text = f"∇E J − ∇J, each entry over the largest, {name}"
            tolerance = 1e-9 * max(1.0, float(jnp.abs(exact).max() / scale))  # of a difference
            yield equal(text, [(predicted / scale, in_controls / scale), (predicted / scale, in_states / scale)], route, tolerance)


def added_gradient(A: np.ndarray, B: np.ndarray, Q: np.ndarray, K: np.ndarray, horizon: int) -> np.ndarray:
    """∇_K Σ_{j=1}^{H−1} (H−j) tr(BᵀM^{jᵀ}Q M^j B) = 2 Σ_j (H−j) Σ_{i<j} Bᵀ M^{iᵀ} Q M^j B Bᵀ M^{(j−1−i)ᵀ}, by powers of M = A + BK."""
    powers = [np.linalg.matrix_power(A + B @ K, j) for j in range(horizon)]
    terms = ((horizon - j) * powers[i].T @ Q @ powers[j] @ B @ B.T @ powers[j - 1 - i].T for j in range(1, horizon) for i in range(j))
    return 2 * B.T @ sum(terms)  # pyright: ignore[reportReturnType]


def sampled_gradients(settings: Settings) -> Iterator[Claim]:
    """Two points have mean ∇J where J is quadratic (H = 1, R = 0); REINFORCE has mean ∇E J under the noise of its controls."""
    for key in settings.keys("beyond:sampled_gradients"):
        key_problem, key_gain, key_states, key_draws = jax.random.split(key, 4)
        short = random_lqr(key_problem, settings._replace(horizon=1))
        longer = random_lqr(key_problem, settings._replace(horizon=3))
        K = 0.1 * jax.random.normal(key_gain, short.A.shape)
        X = sphere(key_states, 2, settings.dim)
        cases = {
            "two points, H = 1": (TwoPoint(radius=1.0, directions=1), short, lqr_gradient(short, K, X)),
            "REINFORCE, H = 3": (Reinforce(std=0.3, rollouts=2), longer, lqr_gradient(Noisy(longer, control=0.3), K, X)),
        }
        for name, (estimator, problem, exact) in cases.items():
            drawn = np.asarray(_along(estimator, problem, Linear(K), X, exact, jax.random.split(key_draws, DRAWS)))
            error = float(drawn.std(ddof=1) / DRAWS**0.5)
            route = f"{DRAWS:,} draws, within 4 standard errors"
            yield Claim(f"mean of ⟨g, ∇⟩/‖∇‖²; {name}", 1.0, "=", float(drawn.mean()), 4 * error, route)


@eqx.filter_jit
def _along(estimator, problem, controller, x0s, exact, keys):
    """⟨g, ∇⟩ / ‖∇‖² of each draw."""
    one = lambda key: jnp.sum(estimator(key, problem, controller, x0s).gradient.K * exact) / jnp.sum(exact**2)  # noqa: E731
    return jax.lax.map(one, keys, batch_size=500)
