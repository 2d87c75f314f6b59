"""Beyond the paper: partial observation, u = K y with outputs y = C x. What is learned lives on the outputs that training visits."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, ArrayLike, Float

from offspan.controllers import Linear, Observed
from offspan.exploration import visited_states
from offspan.measures import optimality_measure
from offspan.problems.lqr import LQR, identity
from offspan.rollout import cost, lqr_gradient
from offspan.states import basis, seen_projector, sphere
from offspan.theory import closed_forms, underdetermined
from offspan.theory.claims import Claim, Settings, careful_rate, equal, random_lqr, random_orthogonal

ONE_STEP = "one step of policy gradient"


def output_gradient(problem: LQR, K: Float[ArrayLike, "m p"], C: Float[ArrayLike, "p n"], x0s: ArrayLike) -> Float[Array, "m p"]:
    """∂J/∂K = ∇J(KC; X) Cᵀ of the controller u = K C x  [beyond R24].

    >>> import numpy as np, offspan
    >>> problem, C = offspan.identity(2, horizon=1), np.array([[1.0, 1.0]])  # J = ‖x_0‖² + ‖x_0 + K(x_1 + x_2)‖², at K = 0
    >>> output_gradient(problem, np.zeros((2, 1)), C, offspan.basis(2, 1)).tolist()
    [[2.0], [0.0]]
    """
    C = jnp.asarray(C)
    return lqr_gradient(problem, jnp.asarray(K) @ C, x0s) @ C.T


def unobserved_directions(seen: ArrayLike, C: ArrayLike) -> Float[np.ndarray, "_ n"]:
    """An orthonormal basis of S⊥ ∩ ker C, as rows: unseen, and with output 0."""
    return scipy.linalg.null_space(np.vstack([seen, C])).T


def aliased(x0: Float[np.ndarray, "n"], C: Float[np.ndarray, "p n"]) -> float:
    """‖(I − x_0x_0ᵀ) CᵀC x_0‖² for a unit x_0: by how much outputs of unseen directions overlap with that of x_0."""
    overlap = C.T @ C @ x0
    return float(overlap @ overlap - (x0 @ overlap) ** 2)


def partial_observation(settings: Settings) -> Iterator[Claim]:
    """For u = K C x, ∂J/∂K = ∇J(KC; S) Cᵀ, so K(t) y = 0 for every output y orthogonal to all visited outputs C x_h.

    E_opt(KC) is ‖A v‖²_Q on unseen directions v with C v = 0, whatever K, and ‖(A + BKC) Π‖²_Q on the others, Π the projector on the
    rows of C P_U: the measure lives on outputs of S⊥. Where outputs overlap it can exceed that of K = 0: for A = B = Q = I, S = {x_0},
    ‖x_0‖ = 1, the step with η = 1/(‖C x_0‖² H(H+1)) reaches a minimiser, with E_opt(K(2) C) = 1 + ‖P_U CᵀC x_0‖²/(|U| ‖C x_0‖⁴).
    """
    D, iterations = settings.dim, 200
    route = f"all of {iterations} iterations"
    for key in settings.keys("beyond:partial_observation"):
        key_problem, key_outputs, key_gain, key_halves, key_mix, key_start = jax.random.split(key, 6)
        problem, S = random_lqr(key_problem, settings), sphere(key_problem, max(D // 2, 1), D)
        outputs = max((D - len(S)) // 2, 1)
        C = jax.random.normal(key_outputs, (outputs, D)) / D**0.5
        K = 0.3 * jax.random.normal(key_gain, (D, outputs))
        yield from _gradient(problem, K, C, S)
        yield from _measure_on_outputs(problem, K, C, S)

        problem, S, C, unvisited = _decoupled_outputs(key_halves, settings)
        history = _iterates(problem, C, S[:1], careful_rate(problem, basis(D)), iterations)
        visited = np.asarray(_visited_outputs(problem, history, C, S[:1]))
        rank = np.linalg.matrix_rank(visited, tol=1e-8 * np.abs(visited).max())
        yield equal("dimensions of the visited outputs", [(len(C) - len(unvisited), rank)], f"rank of the outputs of {route}")
        yield equal("K(t) y, y orthogonal to them", [(0.0, history @ unvisited.T)], route)

        problem, C = identity(D, horizon=settings.horizon), jax.random.normal(key_mix, (max(D - 1, 1), D)) / D**0.5
        x0, H = sphere(key_start, 1, D), settings.horizon
        length = float(jnp.sum((C @ x0[0]) ** 2))
        K = _iterates(problem, C, x0, 1 / (length * H * (H + 1)), 2)[1]
        yield equal(
            "identity, one step that sends x_0 to zero: J(K(2) C; x_0), the least", [(1.0, cost(problem, Linear(K @ C), x0))], ONE_STEP
        )
        predicted = 1 + aliased(np.asarray(x0[0]), np.asarray(C)) / length**2 / (D - 1)
        yield equal("and E_opt(K(2) C), 1 or more", [(predicted, optimality_measure(problem, K @ C, x0))], ONE_STEP)


def _gradient(problem: LQR, K: Array, C: Array, S: Array) -> Iterator[Claim]:
    predicted = closed_forms.lqr_gradient_sum(problem, K @ C, S) @ np.asarray(C).T
    scale, route = np.abs(predicted).max(), "automatic differentiation of rollouts of Observed(Linear(K), Linear(C))"
    measured = _by_differentiation(K, problem, C, S)
    yield equal("∂J/∂K = ∇J(KC; S) Cᵀ, each entry over the largest", [(predicted / scale, measured / scale)], route)
    yield equal("the same by the adjoint recursion", [(predicted / scale, output_gradient(problem, K, C, S) / scale)], "output_gradient")


def _measure_on_outputs(problem: LQR, K: Array, C: Array, S: Array) -> Iterator[Claim]:
    A, B, Q = (np.asarray(M) for M in (problem.A, problem.B, problem.Q))
    unseen = np.eye(len(A)) - np.asarray(seen_projector(S))
    count, observed = len(A) - len(S), np.asarray(C) @ unseen
    on_outputs = np.linalg.pinv(observed) @ observed
    hidden = A @ unobserved_directions(S, C).T
    least, loop = np.trace(hidden.T @ Q @ hidden) / count, (A + B @ np.asarray(K @ C)) @ on_outputs
    predicted = least + np.trace(loop.T @ Q @ loop) / count
    yield equal(
        "E_opt(KC), by what C sees of S⊥ and what it does not", [(predicted, optimality_measure(problem, K @ C, S))], "the measure of KC"
    )
    best = -np.linalg.solve(B, A @ unseen) @ np.linalg.pinv(observed)
    text = "its least value over K: ‖A v‖²_Q where C v = 0"
    yield equal(text, [(least, optimality_measure(problem, best @ C, S))], "least squares")


@jax.jit
@jax.grad
def _by_differentiation(K: Array, problem: LQR, C: Array, S: Array) -> Array:
    return cost(problem, Observed(Linear(K), Linear(C)), S)


@jax.jit
def _visited_outputs(problem: LQR, history: Array, C: Array, S: Array) -> Array:
    return jax.vmap(lambda K: visited_states(problem, Linear(K @ C), S) @ C.T)(history).reshape(-1, len(C))


@partial(jax.jit, static_argnames="iterations")
def _iterates(problem: LQR, C: Array, S: Array, learning_rate: ArrayLike, iterations: int) -> Float[Array, "t m p"]:
    start = jnp.zeros((problem.control_dim, len(C)))
    return jax.lax.scan(lambda K, _: (K - learning_rate * output_gradient(problem, K, C, S), K), start, length=iterations)[1]


def _decoupled_outputs(key, settings: Settings):
    """Two decoupled halves, and outputs of each in orthogonal directions; seen states of the first half, and the outputs of the other."""
    key_halves, key_outputs, key_rotation = jax.random.split(key, 3)
    problem, S, other_half = underdetermined.two_separate_halves(key_halves, settings)
    sizes = [max(len(half) // 2, 1) for half in (S, other_half)]
    rotation = random_orthogonal(key_rotation, sum(sizes))
    first, other = (
        jax.random.normal(k, (size, len(half))) @ half
        for k, size, half in zip(jax.random.split(key_outputs), sizes, (S, other_half), strict=True)
    )
    C = rotation @ jnp.vstack([first, other])
    return problem, S, C / jnp.linalg.norm(C, 2), rotation.T[sizes[0] :]
