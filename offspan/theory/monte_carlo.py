"""The random systems of thm:typical_system by simulation: the other route to the exact expectations of `gaussian`."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from offspan.errors import OffspanError, as_count
from offspan.measures import optimality_measure
from offspan.problems.lqr import LQR
from offspan.rollout import lqr_gradient
from offspan.states import basis, unseen_directions
from offspan.training import Status, train_lqr_batch

BATCH_ENTRIES = 2**21  # entries of all A in one batch: some 16 MiB


class FirstSteps(NamedTuple):
    """What the first step does on each simulated system r: E_opt(K(2)) = baseline − η · alignment + η² · curvature."""

    baseline: np.ndarray  # (r,) E_opt(K(1)) = E_opt(K_no-ext); its mean is 1, or q
    alignment: np.ndarray  # (r,) ⟨∇E_opt, ∇J⟩; its mean is a
    curvature: np.ndarray  # (r,) 1/|U| Σ_v ‖B∇J v‖²; its mean is b
    gradient_norm: np.ndarray  # (r,) ‖∇J‖²

    def ratios(self, learning_rate: float) -> np.ndarray:
        """E_opt(K(2)) / E_opt(K_no-ext) of each system."""
        return 1 + (learning_rate**2 * self.curvature - learning_rate * self.alignment) / self.baseline


def estimate(samples: np.ndarray) -> tuple[float, float]:
    """The mean, and its standard error."""
    return float(np.mean(samples)), float(np.std(samples, ddof=1) / np.sqrt(len(samples)))


def simulate(key: PRNGKeyArray, dim: int, horizon: int, seen: Any, systems: int, *, length: float = 1.0, q: float = 1.0) -> FirstSteps:
    """Draws A with entries N(0, q/D) and evaluates the gradients at K(1) = 0 by the adjoint recursion, B = I.

    S = length · {e_1..e_seen}, or length times the states `seen`, an array (s, n).
    """
    systems, horizon = (as_count("simulate", name, value, least=1) for name, value in (("systems", systems), ("horizon", horizon)))
    seen = as_count("simulate", "seen", seen, least=1) if not getattr(seen, "ndim", 0) and not isinstance(seen, list) else seen
    U = None if isinstance(seen, int) else unseen_directions(seen)
    if (dim == seen) if U is None else not len(U):
        raise OffspanError(f"simulate: the seen states span all {dim} dimensions, so that no direction is unseen; pass fewer.")
    return FirstSteps(*_in_batches(_first_steps, key, systems, dim, horizon, length * _states(dim, seen), U, q))


def _states(dim: int, seen: Any) -> Float[Array, "s n"]:
    return basis(dim, seen) if isinstance(seen, int) else jnp.asarray(seen)


def _in_batches(function, key, systems: int, dim: int, *given) -> np.ndarray:
    batch = max(1, min(systems, BATCH_ENTRIES // dim**2))
    parts = [np.asarray(function(k, batch, dim, *given)) for k in jax.random.split(key, -(-systems // batch))]
    return np.concatenate(parts, axis=-1)[..., :systems]


@partial(jax.jit, static_argnames=("count", "dim", "horizon"))
def _first_steps(key, count: int, dim: int, horizon: int, S, U, q) -> Float[Array, "4 r"]:
    def of_one(A):
        gradient = lqr_gradient(LQR(A, horizon=horizon), jnp.zeros((dim, dim), A.dtype), S)
        unseen, part = (M[:, len(S) :] if U is None else M @ U.T for M in (A, gradient))  # on basis states, the other columns
        sums = jnp.array([jnp.sum(unseen**2), 2 * jnp.sum(unseen * part), jnp.sum(part**2)])
        return jnp.append(sums / unseen.shape[1], jnp.sum(gradient**2))

    return jax.vmap(of_one)(jax.random.normal(key, (count, dim, dim)) * (q / dim) ** 0.5).T


def simulate_wide(key: PRNGKeyArray, dim: int, horizon: int, seen: int, systems: int) -> FirstSteps:
    """The same law at a cost of D instead of D² a system, by drawing of A only what the gradient asks for: the states x_h and costates λ_h.

    If A is known on the span of some v, and Aᵀ on that of some w, then A z for a unit z ⊥ all v is a fresh Gaussian vector but for its
    coordinates along the w, which are ⟨Aᵀw, z⟩; and the same with A and Aᵀ exchanged. What stays unknown of ‖A‖² is a χ² variable.
    """
    given = {"dim": dim, "horizon": horizon, "seen": seen, "systems": systems}
    dim, horizon, seen, systems = (as_count("simulate_wide", name, value, least=1) for name, value in given.items())
    if dim <= (least := 2 * seen * horizon):
        raise OffspanError(f"simulate_wide: `dim` is {dim}, but must be more than 2|S|H = {least}; `simulate` takes any.")
    rng, batch = np.random.default_rng(np.asarray(jax.random.key_data(key))), max(1, BATCH_ENTRIES // (4 * dim))
    parts = [_wide_steps(rng, min(batch, systems - done), dim, horizon, seen) for done in range(0, systems, batch)]
    return FirstSteps(*np.concatenate(parts, axis=-1))


def _wide_steps(rng: np.random.Generator, count: int, dim: int, horizon: int, seen: int) -> np.ndarray:
    known: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"A": [], "T": []}  # pairs (v, A v) and (w, Aᵀw), all v orthonormal, all w too

    def inner(x, y):
        return np.einsum("rn,rn->r", x, y)

    def apply(letter: str, z: np.ndarray) -> np.ndarray:
        image = np.zeros_like(z)
        for v, Av in known[letter]:
            image += (part := inner(v, z)[:, None]) * Av
            z = z - part * v
        length = np.sqrt(inner(z, z))[:, None]
        fresh = rng.normal(scale=dim**-0.5, size=z.shape)
        for w, Atw in known["T" if letter == "A" else "A"]:
            fresh += ((inner(Atw, z) / length[:, 0] - inner(w, fresh))[:, None]) * w
        known[letter].append((z / length, fresh))
        return image + length * fresh

    states, images, costates = [], [], []  # x_h, A x_h and λ_{h+1}, h = 0..H−1, from each seen state
    for x in np.eye(seen, dim):
        path = [np.tile(x, (count, 1))]
        for _ in range(horizon):
            path.append(apply("A", path[-1]))
        costate = [path[-1]]
        for x_h in path[-2:0:-1]:
            costate.append(x_h + apply("T", costate[-1]))
        states, images, costates = states + path[:-1], images + path[1:], costates + costate[::-1]
    X, AX, costates = (np.stack(vectors, axis=1) for vectors in (states, images, costates))
    first = [index * horizon for index in range(seen)]  # where X is e_1 … e_seen
    X_unseen, AX_unseen = X.copy(), AX - np.einsum("rks,rsn->rkn", X[:, :, :seen], AX[:, first])
    X_unseen[:, :, :seen] = 0.0
    met = sum(inner(image, image) for pairs in known.values() for _, image in pairs)
    met = met - sum(inner(w, Av) ** 2 for _, Av in known["A"] for w, _ in known["T"])
    rest = rng.chisquare((dim - len(known["A"])) * (dim - len(known["T"])), count) / dim
    G = np.einsum("rkn,rln->rkl", costates, costates)
    norms = [4 * np.einsum("rkl,rkn,rln->r", G, Y, Y, optimize=True) / seen**2 for Y in (X_unseen, X)]
    unseen = dim - seen
    baseline = (met + rest - np.sum(AX[:, first] ** 2, axis=(1, 2))) / unseen
    alignment = 4 * np.sum(AX_unseen * costates, axis=(1, 2)) / (seen * unseen)
    return np.stack([baseline, alignment, norms[0] / unseen, norms[1]])


def stepped_measures(
    key: PRNGKeyArray, dim: int, horizon: int, seen: Any, learning_rate: float, systems: int, *, length: float = 1.0
) -> np.ndarray:
    """E_opt(K(2)) itself, on systems with random A and random orthogonal B, after one step from K(1) = 0; `seen` as in `simulate`."""
    return _in_batches(_stepped, key, systems, dim, horizon, length * _states(dim, seen), learning_rate)


@partial(jax.jit, static_argnames=("count", "dim", "horizon"))
def _stepped(key, count: int, dim: int, horizon: int, S, learning_rate) -> Float[Array, "r"]:
    def of_one(A, B):
        problem = LQR(A, jnp.linalg.qr(B)[0], horizon=horizon)
        K = -learning_rate * lqr_gradient(problem, jnp.zeros((dim, dim), A.dtype), S)
        return optimality_measure(problem, K, S)

    A, B = jax.random.normal(key, (2, count, dim, dim))
    return jax.vmap(of_one)(A / dim**0.5, B)


def trained_ratios(key: PRNGKeyArray, dim: int, horizon: int, seen: int, learning_rate: float, systems: int, iterations: int) -> np.ndarray:
    """E_opt(K)/E_opt(K_no-ext) after `iterations` steps on each of some random systems; +∞ for a run that diverged."""
    draws = np.asarray(jax.random.normal(key, (systems, dim, dim))) / dim**0.5
    problems, S = [LQR(A, horizon=horizon) for A in draws], [basis(dim, seen)] * systems
    batch = train_lqr_batch(problems, S, learning_rate=learning_rate, iterations=iterations, record_every=min(iterations, 1000))
    return np.where(batch.codes == Status.diverged, np.inf, batch.normalized_optimality[:, -1])
