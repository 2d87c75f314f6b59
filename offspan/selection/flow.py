"""Training of a linear controller in closed form, as long as the states that it visits are taken to stand still."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from offspan.controllers import Linear
from offspan.exploration import visited_count
from offspan.problems.lqr import LQR
from offspan.rollout import cost, rollout

STAGES = 20


def flow_costs(
    problem: LQR, candidates: Float[Array, "c n"], sets: np.ndarray, K0: Float[Array, "m n"], rate: float, iterations: int
) -> tuple[np.ndarray, int]:
    """J(K; all candidates) for K at the end of training from K0 on each of the sets (q, k), estimated; and the rollouts that it took.

    Take G, the mean of x xᵀ over what is visited from S, summed over time, for constant, and let every step pay for its own next state
    alone. Then policy gradient is regression, dK/dt = −2 BᵀQ(A + BK)G, and its flow has a closed form (`flow`). With G brought up to date
    at times that grow geometrically from 1 to N iterations, a few dozen rollouts stand for the N·k of training.
    """
    times = rate * np.unique(np.geomspace(1, max(iterations, 1), STAGES).round())
    spans = jnp.asarray(np.diff(times, prepend=0.0), candidates.dtype)
    costs = _costs_after(problem, candidates, candidates[sets], K0.astype(candidates.dtype), spans, visited_count(problem))
    return np.asarray(costs, float), len(sets) * (len(times) * sets.shape[1] + len(candidates))


@partial(jax.jit, static_argnums=5)
def _costs_after(problem, candidates, sets, K0, spans, visited):
    def of_one(S):
        def stage(K, span):
            X = jax.vmap(lambda x0: rollout(problem, Linear(K), x0).states)(S)[:, :visited]
            return flow(problem, K, jnp.einsum("shi,shj->ij", X, X) / len(S), span), None

        K, _ = jax.lax.scan(stage, K0, spans)
        return cost(problem, Linear(K), candidates)

    return jax.vmap(of_one)(sets)


def flow(problem: LQR, K: Float[Array, "m n"], G: Float[Array, "n n"], time: Float[Array, ""]) -> Float[Array, "m n"]:
    """The solution at `time` of dK/dt = −2 BᵀQ(A + BK)G.

    With Q^½B = U Σ Vᵀ and G = W Γ Wᵀ, the entries of VᵀKW decay on their own, each at the rate 2σ_i²γ_j, towards −(Uᵀ Q^½ A W)_ij / σ_i.
    """
    values, vectors = jnp.linalg.eigh(problem.Q)
    root = (vectors * jnp.sqrt(jnp.maximum(values, 0))[None]) @ vectors.T
    U, sigma, Vt = jnp.linalg.svd(root @ problem.B, full_matrices=False)
    gamma, W = jnp.linalg.eigh(G)
    moves = sigma[:, None] > 1e-12 * jnp.max(sigma)
    aim = -(U.T @ root @ problem.A @ W) / jnp.where(moves, sigma[:, None], 1)
    share = -jnp.expm1(-2 * time * sigma[:, None] ** 2 * jnp.maximum(gamma, 0)[None])
    return K + Vt.T @ jnp.where(moves, (aim - Vt @ K @ W) * share, 0) @ W.T
