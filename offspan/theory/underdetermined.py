"""Statements about all underdetermined problems: gradient, minimum, measures, and how extrapolation follows exploration."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array

from offspan.baselines import extrapolating_controller, minimal_cost, nonextrapolating_controller
from offspan.controllers import Linear
from offspan.exploration import krylov_rank, visited_states
from offspan.measures import cost_measure, optimality_measure
from offspan.problems.lqr import LQR, gaussian, identity, shift
from offspan.rollout import cost, lqr_cost_and_gradient
from offspan.states import basis, seen_projector, sphere, unseen_directions
from offspan.theory import closed_forms
from offspan.theory.claims import Claim, Settings, at_least, at_most, careful_rate, equal, iterates, random_lqr, random_orthogonal


def gradient(settings: Settings) -> Iterator[Claim]:
    """∇J(K; X) = 2Bᵀ Σ_h (Σ_s [(A+BK)^{s−1}]ᵀ Q (A+BK)^s) Σ_{X,h}, for any A, B, K and Q ⪰ 0."""
    for key in settings.keys("lem:lqr_gradient"):
        problem, K, X = _problem_gain_states(key, settings, rank=settings.dim - 1)
        predicted = closed_forms.lqr_gradient_sum(problem, K, X)
        scale = np.abs(predicted).max()
        measured = jax.grad(lambda K, problem=problem, X=X: cost(problem, Linear(K), X))(K)
        route = "automatic differentiation of rollouts"
        yield equal("∇J(K; X), each entry over the largest", [(predicted / scale, measured / scale)], route)
        direction = jax.random.normal(jax.random.fold_in(key, 1), K.shape)
        ahead, behind = (cost(problem, Linear(K + step * direction), X) for step in (1e-5, -1e-5))
        pair = np.sum(predicted * direction) / scale, (ahead - behind) / 2e-5 / scale
        yield equal("⟨∇J(K; X), a random direction⟩, over the same", [pair], "central differences of the cost", 1e-6)


def minimum(settings: Settings) -> Iterator[Claim]:
    """J*(X) = 1/|X| Σ ‖x_0‖², attained by K iff K x_0 = −B⁻¹A x_0 for every x_0 ∈ X."""
    search = "L-BFGS over K from K = 0"
    for key in settings.keys("lem:cost_min_underdetermined"):
        key_problem, key_control, key_elsewhere = jax.random.split(key, 3)
        problem, _, X = _problem_gain_states(key_problem, settings)
        problem = LQR(problem.A, random_orthogonal(key_control, settings.dim), horizon=settings.horizon)

        def objective(flat, problem=problem, X=X):
            value, gradient = lqr_cost_and_gradient(problem, flat.reshape(problem.A.shape), X)
            return float(value), np.asarray(gradient).ravel()

        options = {"ftol": 1e-16, "gtol": 1e-10}
        result = scipy.optimize.minimize(objective, np.zeros(problem.A.size), jac=True, method="L-BFGS-B", options=options)
        K, predicted = result.x.reshape(problem.A.shape), float(minimal_cost(problem, X))
        yield equal("J*(X)", [(predicted, result.fun)], search, 1e-8)
        yield equal("K x_0 where J is least, each entry", [(extrapolating_controller(problem) @ X.T, K @ X.T)], search, 1e-4)
        # Any closed loop on the unseen directions, but of norm 1: a longer one would amplify what rounding leaves on the seen ones.
        loop = random_orthogonal(key_elsewhere, settings.dim)
        elsewhere = jnp.linalg.solve(problem.B, loop - problem.A) @ (jnp.eye(settings.dim) - seen_projector(X))
        attained = cost(problem, Linear(nonextrapolating_controller(problem, X) + elsewhere), X)
        yield equal("J(K; X) with K x_0 = −B⁻¹A x_0, any controls elsewhere", [(predicted, attained)], "rollouts")


def invariance(settings: Settings) -> Iterator[Claim]:
    """E_opt and E_cost do not depend on the orthonormal basis U of S⊥ (Q = I)."""
    yield from _invariance(settings, "lem:extrapolation_measures_invariant", identity_cost=True)


def invariance_any_q(settings: Settings) -> Iterator[Claim]:
    """The Q-optimality and Q-cost measures do not depend on the orthonormal basis U of S⊥, for any Q ⪰ 0."""
    yield from _invariance(settings, "lem:extrapolation_measures_invariant_general_q", identity_cost=False)


def _invariance(settings: Settings, statement: str, identity_cost: bool) -> Iterator[Claim]:
    route = "plain sum over a basis of S⊥, rotated at random"
    for key in settings.keys(statement):
        key_problem, key_basis = jax.random.split(key)
        problem, K, S = _problem_gain_states(key_problem, settings, rank=settings.dim - 1)
        if identity_cost:
            problem = LQR(problem.A, problem.B, horizon=problem.horizon)
        M, Q, X = np.asarray(problem.A + problem.B @ K), np.asarray(problem.Q), _a_basis(key_basis, unseen_directions(S))
        costs = []  # of each step, by a plain sum over the basis
        for _ in range(problem.horizon):
            X = X @ M.T
            costs.append(np.mean([x @ Q @ x for x in X]))
        yield equal("E_opt(K), by the projector on S⊥", [(optimality_measure(problem, K, S), costs[0])], route)
        yield equal("E_cost(K), by the projector on S⊥", [(cost_measure(problem, K, S), sum(costs))], route)


def _a_basis(key, U):
    return np.asarray(random_orthogonal(key, len(U)) @ U)


def footnotes(settings: Settings) -> Iterator[Claim]:
    """E_opt(K) = 0 iff E_cost(K) = 0; E(K_no-ext) = 0 iff A U = 0; K(1) = 0 has the same E_opt as K_no-ext  (Q ≻ 0)."""
    for key in settings.keys("sec:prelim:extrapolation"):
        problem, K, S = _problem_gain_states(key, settings)
        on_seen, U = seen_projector(S), unseen_directions(S)
        without_control = float(jnp.mean(jnp.einsum("ui,ij,uj->u", U @ problem.A.T, problem.Q, U @ problem.A.T)))
        baseline = optimality_measure(problem, nonextrapolating_controller(problem, S), S)
        yield equal("E_opt(K_no-ext) = 1/|U| Σ_{x∈U} ‖A x‖²_Q", [(without_control, baseline)], "the measure of K_no-ext")
        yield equal("E_opt(K(1)), the same", [(without_control, optimality_measure(problem, 0 * K, S))], "the measure of K = 0")
        both = cost_measure(problem, K, S), optimality_measure(problem, K, S)
        yield at_most("E_opt(K) against E_cost(K): 0 where that is", [both], "both measures of a random K")
        optimal_unseen = extrapolating_controller(problem) @ (jnp.eye(settings.dim) - on_seen) + K @ on_seen
        both = optimality_measure(problem, optimal_unseen, S), cost_measure(problem, optimal_unseen, S)
        yield equal("E_cost(K) where E_opt(K) = 0", [both], "K optimal on U, random on S")
        nothing_to_do = LQR(problem.A @ on_seen, problem.B, problem.Q, horizon=problem.horizon)
        measured = cost_measure(nothing_to_do, nonextrapolating_controller(nothing_to_do, S), S)
        yield equal("E_cost(K_no-ext) where A U = 0", [(0.0, measured)], "A replaced by A P_S")


def no_exploration(settings: Settings) -> Iterator[Claim]:
    """K(t) x = 0 for every x orthogonal to all states visited in training, for any B and Q ⪰ 0, singular ones, too (the remark after it).

    So if B is invertible and span(S) holds all of these, E_opt(K(t)) = E_opt(K_no-ext). For A = B = Q = I and any S it does:
    E_opt(K(t)) = E_opt(K_no-ext) = 1 and E_cost(K(t)) = E_cost(K_no-ext) = H at every t.
    """
    D, iterations = settings.dim, 200
    route = f"all of {iterations} iterations"
    identity_measures = closed_forms.identity_measures(settings.horizon)
    for key in settings.keys("prop:no_exploration_no_extrapolation"):
        key_halves, key_seen = jax.random.split(key)
        problem, S, other_half = two_separate_halves(key_halves, settings)
        # Careful from every direction: too long steps would amplify what rounding puts into the other half.
        rate = careful_rate(problem, basis(D))
        history = iterates(problem, S[:1], rate, iterations)
        visited = jax.vmap(lambda K, problem=problem, S=S: visited_states(problem, Linear(K), S[:1]))(history).reshape(-1, D)
        rank = np.linalg.matrix_rank(visited, tol=1e-8 * np.abs(visited).max())
        yield equal("dimensions visited from one state of two decoupled halves", [(D // 2, rank)], f"rank of the states of {route}")
        yield equal("K(t) x, x orthogonal to them", [(0.0, history @ other_half.T)], route)
        measured = _along(optimality_measure, problem, iterates(problem, S, rate, iterations), S)
        baseline = optimality_measure(problem, nonextrapolating_controller(problem, S), S)
        yield equal("E_opt(K(t)), where span(S) holds all visited states", [(baseline, measured)], route)
        problem, S, other_half = _two_singular_halves(key_halves, settings)
        ranks = [np.linalg.matrix_rank(M) for M in (problem.B, problem.Q)]
        yield at_most("ranks of B and Q, where both are singular", [(D - 1, ranks)], "singular values", 0.0)
        history = iterates(problem, S[:1], careful_rate(problem, basis(D), 0.005), iterations)
        yield equal("K(t) x there, x orthogonal to all visited states", [(0.0, history @ other_half.T)], route)
        still, X = identity(D, horizon=settings.horizon), sphere(key_seen, max(D // 2, 1), D)
        history = iterates(still, X, careful_rate(still, X), iterations)
        for name, measure, predicted in zip(("E_opt", "E_cost"), (optimality_measure, cost_measure), identity_measures, strict=True):
            yield equal(f"identity: {name}(K(t))", [(predicted, _along(measure, still, history, X))], f"{route}, random S")
            baseline = measure(still, nonextrapolating_controller(still, X), X)
            yield equal(f"identity: {name}(K_no-ext)", [(predicted, baseline)], "the measure of K_no-ext, random S")


@partial(jax.jit, static_argnums=0)
def _along(measure, problem, history, S):
    """A measure of every controller of a training run."""
    return jax.vmap(lambda K: measure(problem, K, S))(history)


def intuition(settings: Settings) -> Iterator[Claim]:
    """An iteration tends to shrink ‖(A + BK)x‖² on the states x that it visited: ‖(A+BK(t+1))x‖² < ‖(A+BK(t))x‖²."""
    several = settings._replace(seeds=max(settings.seeds, 5))  # a tendency: it need not show on a single system
    ratios = np.concatenate([shrinkage(gaussian(key, settings.dim, horizon=settings.horizon)) for key in several.keys("intuition")])
    on_shift = shrinkage(shift(settings.dim, horizon=settings.horizon))
    route = f"300 steps of first length 0.02 on {several.seeds} random systems"
    yield at_least("share of visited states on which it shrinks: most", [(0.5, np.mean(ratios < 1))], route)
    yield at_most("median of ‖(A+BK(t+1))x‖² / ‖(A+BK(t))x‖²", [(1.0, np.median(ratios))], route)
    yield equal("the share for the shift", [(1.0, np.mean(on_shift < 1))], "300 steps of first length 0.02")


def shrinkage(problem: LQR, iterations: int = 300) -> np.ndarray:
    """‖(A+BK(t+1))x‖² / ‖(A+BK(t))x‖² for each t and each state x ≠ 0 visited under K(t), from S = {e_1}."""
    S = basis(problem.state_dim, 1)
    history = iterates(problem, S, careful_rate(problem, S), iterations)
    X = jax.vmap(lambda K: visited_states(problem, Linear(K), S)[0])(history)
    loops = jnp.swapaxes(problem.A[None] + problem.B @ history, 1, 2)
    before, after = (np.asarray(jnp.sum((X[:-1] @ M) ** 2, axis=2)) for M in (loops[:-1], loops[1:]))
    return after[before > 1e-24] / before[before > 1e-24]


def minimal_norm(settings: Settings) -> Iterator[Claim]:
    """Of all minimisers of J(·; S), K_no-ext is the only one of least norm  (Q ≻ 0)."""
    for key in settings.keys("lem:min_norm"):
        problem, K, S = _problem_gain_states(key, settings)
        K_no_ext = nonextrapolating_controller(problem, S)
        solution = np.linalg.lstsq(np.asarray(S), np.asarray(extrapolating_controller(problem) @ S.T).T, rcond=None)[0].T
        yield equal("K of least norm with K x_0 = −B⁻¹A x_0, each entry", [(K_no_ext, solution)], "least squares")
        elsewhere = K @ (jnp.eye(settings.dim) - seen_projector(S))
        one_step = LQR(problem.A, problem.B, problem.Q, horizon=1)  # a minimiser for H = 1 is one for every H
        costs = minimal_cost(one_step, S), cost(one_step, Linear(K_no_ext + elsewhere), S)
        yield equal("J(K; S) of K_no-ext with other controls on S⊥: J*(S)", [costs], "rollouts, H = 1")
        norms = jnp.sum(K_no_ext**2) + jnp.sum(elsewhere**2), jnp.sum((K_no_ext + elsewhere) ** 2)
        yield equal("its ‖K‖²: ‖K_no-ext‖² + ‖the part on S⊥‖²", [norms], "random controls on S⊥")


def cyclic_vectors(settings: Settings) -> Iterator[Claim]:
    """x, A x, …, A^{D−1} x span the space for almost every A; for the shift from e_1, too, for the identity never."""
    D, e_1, route = settings.dim, basis(settings.dim, 1), "modes that x excites, against rounding"
    keys = [jax.random.split(key, 3) for key in settings.keys("lem:cyc_vector_generic")]
    for key_system, key_state, _ in keys:
        for dim, text in ((D, "rank of (A, x), A Gaussian, x random"), (100, "the same for D = 100")):
            rank = krylov_rank(gaussian(key_system, dim, horizon=1).A, sphere(key_state, 1, dim))
            yield equal(text, [(dim, rank)], route, 0.0)
    yield equal("rank of (A, e_1), A the shift", [(D, krylov_rank(shift(D, horizon=1).A, e_1))], route, 0.0)
    yield equal("rank of (A, e_1), A the identity", [(1, krylov_rank(identity(D, horizon=1).A, e_1))], route, 0.0)
    for _, _, key_halves in keys:
        problem, S, _ = two_separate_halves(key_halves, settings)
        rank = krylov_rank(problem.A, S[:1])
        yield equal("rank of (A, x), A in two halves, hidden by a rotation", [(D // 2, rank)], route, 0.0)


def _problem_gain_states(key, settings: Settings, rank: int | None = None):
    """A random problem with Q of this rank (full by default), a random K, and about half as many random seen states as dimensions."""
    key_problem, key_gain, key_states = jax.random.split(key, 3)
    problem = random_lqr(key_problem, settings, rank=rank)
    K = 0.3 * jax.random.normal(key_gain, problem.A.shape)
    return problem, K, jax.random.normal(key_states, (max(settings.dim // 2, 1), settings.dim))


def two_separate_halves(key, settings: Settings):
    """Two decoupled halves in rotated coordinates; seen states that span the first, and a basis of the other.

    ‖A‖ = 1, so that no number of steps amplifies what rounding puts into the other half.
    """
    return _halves(key, settings, jnp.ones(settings.dim))


def _two_singular_halves(key, settings: Settings):
    """The same with B and Q that are zero in a direction of each half (of the first one if it has two)."""
    half = settings.dim // 2
    return _halves(key, settings, jnp.ones(settings.dim).at[-1].set(0.0).at[half - 1].set(float(half == 1)))


def _halves(key, settings: Settings, kept: Array):
    D, half = settings.dim, settings.dim // 2
    first = jnp.arange(D) < half
    together = first[:, None] == first[None, :]
    key_problem, key_rotation, key_states = jax.random.split(key, 3)
    coupled, rotation = random_lqr(key_problem, settings), random_orthogonal(key_rotation, D)
    A, B, Q = (rotation @ (M * together) @ rotation.T for M in (coupled.A, coupled.B * kept[None, :], coupled.Q * jnp.outer(kept, kept)))
    S = sphere(key_states, half, half) @ rotation[:, :half].T
    return LQR(A / jnp.linalg.norm(A, 2), B, (Q + Q.T) / 2, horizon=settings.horizon), S, rotation.T[half:]
