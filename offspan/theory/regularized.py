"""Statements about control costs, R ≠ 0: how many minimisers there are, and infinite horizons."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from offspan.controllers import Linear
from offspan.exploration import krylov_rank
from offspan.problems.lqr import LQR, identity, shift
from offspan.rollout import cost, lqr_gradient
from offspan.states import basis, sphere
from offspan.theory import riccati
from offspan.theory.claims import Claim, Settings, at_most, equal, random_lqr
from offspan.theory.riccati import GOLDEN_RATIO, infinite_horizon_cost, infinite_horizon_gradient
from offspan.training import train_lqr_batch

LONG = 500  # steps that stand for an infinite horizon in rollouts: what comes later is far below rounding here
ROLLOUTS = f"rollouts of {LONG} steps"
STARTS = (5_000, 15_000)  # iterations of the starts that come together, before and after a first look at them
GAIN = (1 + 5**0.5) / (3 + 5**0.5)  # c: the optimal control for Q = R = B = I and orthogonal A is −c A x


def with_control_cost(problem: LQR, horizon: int) -> LQR:
    """The same system with R = I and this horizon."""
    return LQR(problem.A, problem.B, problem.Q, np.eye(problem.control_dim), horizon=horizon)


def single_minimiser(settings: Settings) -> Iterator[Claim]:
    """Shift, B = Q = R = I, S = {e_1}, H = ∞: J(·; S) has a single minimiser K* = −c A, c = (1+√5)/(3+√5), from P = (1+√5)/2 · I."""
    D = settings.dim
    problem = with_control_cost(shift(D, horizon=1), LONG)
    yield from _golden_riccati(problem)
    rank = krylov_rank((1 - GAIN) * problem.A, basis(D, 1))
    yield equal("states that K* visits from e_1 span", [(D, rank)], "rank of (A + BK*, e_1)", 0.0)
    small = min(D, 6)  # the smallest eigenvalue falls like 0.146^D, and is lost to rounding in larger dimensions
    flattest = 2 * (1 + GOLDEN_RATIO) * (1 - GAIN) ** (2 * (small - 1)) / (1 - (1 - GAIN) ** (2 * small))
    curvature = _hessian_eigenvalues(with_control_cost(shift(small, horizon=1), 60))
    yield equal("smallest eigenvalue of ∇²J(K*), D ≤ 6", [(flattest, curvature[0])], "second derivatives of rollouts, H = 60")


def many_minimisers(settings: Settings) -> Iterator[Claim]:
    """A = B = Q = R = I, S = {e_1}, H = ∞: J(·; S) has many minimisers, −c I and every −c I + K' with rows of K' orthogonal to e_1."""
    D, S = settings.dim, basis(settings.dim, 1)
    problem = with_control_cost(identity(D, horizon=1), LONG)
    yield from _golden_riccati(problem)
    for key in settings.keys("lem:underdetermined_R_nonzero"):
        other = np.array(jax.random.normal(key, (D, D)).at[:, 0].set(0.0))
        K = -GAIN * np.eye(D) + 0.5 * other / np.linalg.norm(other, 2)
        yield equal("J(−cI + K'; S), at distance ≥ 0.5 from −cI", [(GOLDEN_RATIO, cost(problem, Linear(K), S))], ROLLOUTS)
        yield equal("the same", [(GOLDEN_RATIO, infinite_horizon_cost(problem, K, S))], "Lyapunov equation on what is reachable")
        radius = np.abs(np.linalg.eigvals(np.eye(D) + K)).max()
        yield at_most("spectral radius of A + B(−cI + K'): below 1", [(1 - 1e-9, radius)], "eigenvalues", 0.0)
    K = -GAIN * np.outer(np.eye(D)[0], np.eye(D)[0])
    costs = [(GOLDEN_RATIO, cost(problem, Linear(K), S)), (GOLDEN_RATIO, infinite_horizon_cost(problem, K, S))]
    yield equal("J(−c e_1e_1ᵀ; S), though its spectral radius is 1", costs, "rollouts and Lyapunov equation")
    small = min(D, 6)
    flat = np.sum(np.abs(_hessian_eigenvalues(with_control_cost(identity(small, horizon=1), 60))) < 1e-9)
    yield equal("flat directions of J at −cI, D ≤ 6", [(small * (small - 1), flat)], "second derivatives of rollouts, H = 60", 0.0)


def _golden_riccati(problem: LQR) -> Iterator[Claim]:
    D, A, P = problem.state_dim, np.asarray(problem.A), riccati.riccati_solution(problem)
    golden, solver = GOLDEN_RATIO * np.eye(D), "scipy's Riccati solver"
    yield equal("P = (1+√5)/2 · I, each entry", [(golden, P)], solver)
    yield equal("residual of the Riccati equation there", [(0.0, riccati.riccati_residual(problem, golden))], "the equation itself")
    yield equal("K* = −c A, each entry", [(-GAIN * A, riccati.riccati_controller(problem, P))], solver)
    yield equal("J(K*; e_1) = (1+√5)/2", [(GOLDEN_RATIO, cost(problem, Linear(-GAIN * A), basis(D, 1)))], ROLLOUTS)


def largest_distance(K: np.ndarray) -> float:
    """max_{i,j} ‖K_i − K_j‖ (Frobenius)."""
    flat = K.reshape(len(K), -1)
    return max(float(np.linalg.norm(flat - one, axis=1).max()) for one in flat)


def _hessian_eigenvalues(problem: LQR) -> np.ndarray:
    """Of J(·; e_1) at −c A, in ascending order."""
    S = basis(problem.state_dim, 1)
    hessian = jax.hessian(lambda flat: cost(problem, Linear(flat.reshape(problem.A.shape)), S))
    return np.linalg.eigvalsh(hessian(jnp.ravel(-GAIN * problem.A)))


def finite_horizon(settings: Settings) -> Iterator[Claim]:
    """R = I: for a K that stabilises, J of horizon H approaches J of the infinite horizon exponentially.

    With finite H, policy gradient from random starts (entries N(0, 0.1²)) comes together at one controller; `offspan reproduce
    shift-regularized` is the experiment in full.
    """
    D, S = settings.dim, basis(settings.dim, 1)
    problems = [with_control_cost(shift(D, horizon=1), H) for H in range(1, 8)]
    tails = np.array([GOLDEN_RATIO - float(cost(problem, Linear(-GAIN * problem.A), S)) for problem in problems])
    yield equal("(J_∞ − J_{H+1}) / (J_∞ − J_H) at K*: (1−c)²", [((1 - GAIN) ** 2, tails[1:] / tails[:-1])], "rollouts of H = 1..7", 1e-7)
    for key in settings.keys("app:determined_R_neq_zero"):
        problem, K, X = _stabilised(key, settings)
        short = LQR(problem.A, problem.B, problem.Q, problem.R, horizon=2)  # so that much of J_∞ is left
        after = X @ np.linalg.matrix_power(np.asarray(problem.A + problem.B @ K), short.horizon + 1).T
        tail = infinite_horizon_cost(short, K, X) - float(cost(short, Linear(K), X))
        text = "J_∞ − J_H of a K that decays, H = 2, over J_∞ from the states after H + 1 steps"
        yield equal(text, [(1.0, tail / infinite_horizon_cost(short, K, after))], "Lyapunov equation and rollouts")
    count, distances = 20 * settings.seeds, []
    problems, K = [with_control_cost(_system_of_the_starts(), 5)] * count, 0.1 * jax.random.normal(jax.random.key(0), (count, 5, 5))
    for iterations in STARTS:
        K = train_lqr_batch(problems, [basis(5, 1)] * count, learning_rate=0.02, iterations=iterations, K0=K, record_every=1000).K
        distances.append(largest_distance(K))
    times = f"after {sum(STARTS):,} iterations, 0.9 of what it was after {STARTS[0]:,}"
    text = f"largest distance of two controllers at D = H = 5: {times}, or less"
    yield at_most(text, [(0.9 * distances[0], distances[1])], f"{count} starts, η = 0.02", 0.0)


def _system_of_the_starts() -> LQR:
    return shift(5, horizon=5)


def infinite_horizon(settings: Settings) -> Iterator[Claim]:
    """Beyond the paper: J and ∇J for H = ∞, by Lyapunov equations, for any Q, R ⪰ 0 and any K that decays on what S reaches."""
    for key in settings.keys("beyond:infinite_horizon"):
        problem, K, X = _stabilised(key, settings)
        long, predicted = with_control_cost(problem, LONG), infinite_horizon_cost(problem, K, X)
        yield equal("J(K; X) for H = ∞", [(predicted, cost(long, Linear(K), X))], ROLLOUTS)
        gradients = infinite_horizon_gradient(problem, K, X), lqr_gradient(long, K, X)
        yield equal("∇J(K; X) for H = ∞, each entry", [gradients], f"adjoint recursion over {LONG} steps")


def _stabilised(key, settings: Settings):
    """A random problem with R = I, a random K with ‖A + BK‖ = 0.8, and random states."""
    key_problem, key_gain, key_loop, key_states = jax.random.split(key, 4)
    problem = random_lqr(key_problem, settings)
    K, loop = (np.asarray(jax.random.normal(k, problem.A.shape)) for k in (key_gain, key_loop))
    A = 0.8 * loop / np.linalg.norm(loop, 2) - np.asarray(problem.B) @ K
    X = np.asarray(sphere(key_states, max(settings.dim // 2, 1), settings.dim))
    return LQR(A, problem.B, problem.Q, np.eye(settings.dim), horizon=settings.horizon), K, X
