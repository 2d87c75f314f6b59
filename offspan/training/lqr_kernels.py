"""k policy-gradient updates of linear controllers as fast as XLA makes them: one layout for small systems, one for large ones.

Both compute, for a controller K with closed loop M = A + BK and W = Q + KᵀRK, over the seen states X_0 (one a column or row):

    X_{h+1} = M X_h,      Λ_H = 2 W X_H,   Λ_h = 2 W X_h + MᵀΛ_{h+1},      ∇J = 1/|S| (Bᵀ Σ_{h<H} Λ_{h+1} X_hᵀ + 2RK Σ_{h≤H} X_h X_hᵀ)

which is `lqr_gradient` with the sums taken out of the time loop. What a batch does not need (R = 0, Q = I, B = I, no clipping, no noise) is
None, and left out of its program.

Noise is more states: with x_{h+1} = M x_h + L w_h, each column l of L starts anew after every step, and E J is J(S) plus the stage costs of
M^k l for k = 0..H−1, each as often as it occurs, H − k times. So `weights` holds 1/|S| for the seen states and H − k for these.
"""

import functools
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Systems(NamedTuple):
    """Stacked problems and their seen states; None for a matrix that is the identity (B, Q) or zero (R) in all of them."""

    A: Float[Array, "r n n"]
    B: Float[Array, "r n m"] | None
    Q: Float[Array, "r n n"] | None
    R: Float[Array, "r m m"] | None
    x0s: Float[Array, "r s n"]
    seen: Float[Array, "r"]  # |S|; states after these are zeros, which stay zero
    learning_rate: Float[Array, "r"]
    clip: Float[Array, "r"] | None = None  # the largest norm of a gradient
    weights: Float[Array, "r t s"] | None = None  # of the stage costs from each state; None for 1/|S|


def descend_in_lanes(systems: Systems, K: Float[Array, "r m n"], horizon: int, count, unroll: int = 1) -> Float[Array, "r m n"]:
    """`count` updates with the runs as the last axis: each number of one run is a lane of the processor's vector of runs.

    Every product is a sum of elementwise products, written out, so that the compiler sees loops over runs and nothing else. It pays while
    n is small. `unroll` time steps are written out in each turn of the loops over time.
    """
    A, B, Q, R, X0, seen, learning_rate, clip, weights, K = map(_runs_last, (*systems, K))
    X0 = jnp.swapaxes(X0, 0, 1)  # (n, s, r)
    seen = seen if weights is None else jnp.ones_like(seen)
    rate = (learning_rate / seen)[None, None, :]
    if X0.shape[1] == 2 and unroll >= horizon:
        # Written out, the compiler's code for an axis of two takes 17 µs where that for an axis of three takes 9.
        X0 = jnp.pad(X0, ((0, 0), (0, 1), (0, 0)))
        weights = None if weights is None else jnp.pad(weights, ((0, 0), (0, 1), (0, 0)))

    def update(_, K):
        M = A + (K if B is None else _product(B, K))
        W = _weight_in_lanes(Q, R, K)

        def counted(X, weight):
            return X if weight is None else weight[None] * X

        def weighted(X, weight):
            return 2 * counted(X if W is None else _product(W, X), weight)

        def forwards(X, _):
            return _product(M, X), X

        def backwards(carry, at_h):
            (costates, total), (X, weight) = carry, at_h
            return (weighted(X, weight) + _transposed_product(M, costates), total + _outer_product(costates, X)), None

        before, last = _split_off_last(weights)
        X_H, states = jax.lax.scan(forwards, X0, length=horizon, unroll=unroll)  # X_0..X_{H−1}
        start = weighted(X_H, last), jnp.zeros_like(A)
        (_, total), _ = jax.lax.scan(backwards, start, (states, before), reverse=True, unroll=unroll)
        gradient = total if B is None else _transposed_product(B, total)
        if R is not None:
            add = lambda total, at_h: (total + _outer_product(counted(*at_h), at_h[0]), None)  # noqa: E731
            visited, _ = jax.lax.scan(add, _outer_product(counted(X_H, last), X_H), (states, before))
            gradient += 2 * _product(_product(R, K), visited)
        return K - rate * (gradient if clip is None else _clipped_in_lanes(gradient, seen * clip))

    return jnp.moveaxis(jax.lax.fori_loop(0, count, update, K), -1, 0)


def clipped(gradient: Array, largest_norm: Array) -> Array:
    """Scaled down to that norm where it is longer; by numbers relative to the largest entry, whose squares do not overflow."""
    largest = jnp.max(jnp.abs(gradient))
    unit = gradient / jnp.where(largest > 0, largest, 1)
    length = jnp.sqrt(jnp.sum(unit**2))
    return jnp.where(largest * length > largest_norm, unit / length * largest_norm, gradient)


def _clipped_in_lanes(gradient: Float[Array, "m n r"], largest_norm: Float[Array, "r"]) -> Float[Array, "m n r"]:
    """The same with sums and maxima written out: the compiler's reductions over leading axes took twice the time of the update itself."""
    entries = [gradient[i, j] for i in range(gradient.shape[0]) for j in range(gradient.shape[1])]
    largest = functools.reduce(jnp.maximum, [jnp.abs(entry) for entry in entries])
    scale = 1 / jnp.where(largest > 0, largest, 1)
    length = jnp.sqrt(_sum((entry * scale) ** 2 for entry in entries))
    factor = jnp.where(largest * length > largest_norm, largest_norm / jnp.where(length > 0, length, 1) * scale, 1)
    return gradient * factor[None, None, :]


def stage_costs_in_lanes(systems: Systems, K: Float[Array, "r m n"], X: Float[Array, "r k n"], horizon: int) -> Float[Array, "r t k"]:
    """x_hᵀ W x_h for h = 0..H, from each of the states X of each run, in the layout of `descend_in_lanes`."""
    A, B, Q, R, K, X = map(_runs_last, (*systems[:4], K, X))
    X = jnp.swapaxes(X, 0, 1)
    M = A + (K if B is None else _product(B, K))
    W = _weight_in_lanes(Q, R, K)
    _, costs = jax.lax.scan(lambda X, _: (_product(M, X), jnp.sum(X * (X if W is None else _product(W, X)), axis=0)), X, length=horizon + 1)
    return jnp.moveaxis(costs, -1, 0)


def _weight_in_lanes(Q, R, K):
    """W = Q + KᵀRK; None for the identity."""
    if R is None:
        return Q
    identity = jnp.eye(K.shape[1], dtype=K.dtype)[:, :, None]
    return (identity if Q is None else Q) + _transposed_product(K, _product(R, K))


def _split_off_last(weights: Array | None) -> tuple[Any, Any]:
    """Those of h = 0..H−1, and that of H."""
    return (None, None) if weights is None else (weights[:-1], weights[-1])


def _runs_last(M: Array | None) -> Any:
    return None if M is None else jnp.moveaxis(M, 0, -1)


def _product(M: Array, X: Array) -> Array:
    return _sum(M[:, k, None] * X[None, k] for k in range(M.shape[1]))


def _transposed_product(M: Array, X: Array) -> Array:
    return _sum(M[k, :, None] * X[None, k] for k in range(M.shape[0]))


def _outer_product(X: Array, Y: Array) -> Array:
    return _sum(X[:, None, j] * Y[None, :, j] for j in range(X.shape[1]))


def _sum(terms: Iterable[Array]) -> Array:
    return functools.reduce(operator.add, terms)


def descend_by_products(
    systems: Systems, K: Float[Array, "m n"], horizon: int, count, unroll: int = 1, stacked: bool = True
) -> Float[Array, "m n"]:
    """`count` updates of one run by matrix products, states as rows.

    The sum over times and states is one product, (n, H·s) by (H·s, n), if costates are `stacked`; else H products, added up. `unroll` time
    steps are written out in each turn of the loops over time.
    """
    A, B, Q, R, X0, seen, learning_rate, clip, weights = systems
    n = X0.shape[1]
    seen = seen if weights is None else jnp.ones_like(seen)
    rate = learning_rate / seen

    def update(_, K):
        M = A + (K if B is None else B @ K)
        M_transposed = jax.lax.optimization_barrier(M.T)  # laid out once, not in every product
        W = _weight(Q, R, K)

        def weighted(X, weight):
            return 2 * (X if W is None else X @ W) * (1 if weight is None else weight[:, None])

        def forwards(X, _):
            return X @ M_transposed, X

        def backwards(carry, at_h):
            costates, total = carry
            total = total if stacked else total + costates.T @ at_h[0]
            return (weighted(*at_h) + costates @ M, total), costates if stacked else None

        before, last = _split_off_last(weights)
        X_H, states = jax.lax.scan(forwards, X0, length=horizon, unroll=unroll)  # X_0..X_{H−1}
        start = weighted(X_H, last), jnp.zeros((n, n), K.dtype)
        # The costates are Λ_1..Λ_H, in line with X_0..X_{H−1}.
        (_, total), costates = jax.lax.scan(backwards, start, (states, before), reverse=True, unroll=unroll)
        total = jnp.einsum("hsi,hsj->ij", costates, states) if stacked else total
        gradient = total if B is None else B.T @ total
        if R is not None:
            visited = jnp.concatenate([states, X_H[None]]).reshape(-1, n)
            often = visited if weights is None else weights.reshape(-1, 1) * visited
            gradient += 2 * R @ K @ (often.T @ visited)
        return K - rate * (gradient if clip is None else clipped(gradient, seen * clip))

    return jax.lax.fori_loop(0, count, update, K)


def stage_costs_by_products(systems: Systems, K: Float[Array, "m n"], X: Float[Array, "k n"], horizon: int) -> Float[Array, "t k"]:
    """x_hᵀ W x_h for h = 0..H, from each of the states X of one run."""
    A, B, Q, R = systems[:4]
    M, W = A + (K if B is None else B @ K), _weight(Q, R, K)
    step = lambda X, _: (X @ M.T, jnp.sum(X * (X if W is None else X @ W), axis=1))  # noqa: E731
    return jax.lax.scan(step, X, length=horizon + 1)[1]


def _weight(Q, R, K):
    """W = Q + KᵀRK; None for the identity."""
    if R is None:
        return Q
    return (jnp.eye(K.shape[1], dtype=K.dtype) if Q is None else Q) + K.T @ R @ K
