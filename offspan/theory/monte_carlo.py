"""The random systems of thm:typical_system by simulation: the other route to the exact expectations of `gaussian`."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from offspan.errors import as_count
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
    systems = as_count("simulate", "systems", systems, least=2)
    U = None if isinstance(seen, int) else unseen_directions(seen)
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
