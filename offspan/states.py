"""Sets of initial states, arrays `(s, n)` with one state a row, and the directions that a set leaves unseen."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from offspan.errors import OffspanError, as_count, as_floats, as_key, as_positive, as_states, is_concrete


def basis(dim: int, count: int | None = None) -> Float[Array, "s n"]:
    """e_1..e_count, the paper's seen states S = {e_1, …, e_d}; all of e_1..e_dim by default  [R24, app:experiments:details:lqr].

    >>> import offspan
    >>> offspan.basis(3, 2).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    dim = as_count("basis", "dim", dim, least=1)
    count = dim if count is None else as_count("basis", "count", count, least=1)
    if count > dim:
        raise OffspanError(f"basis: `count` is {count}, but there are only {dim} basis vectors in dimension {dim}.")
    return jnp.eye(dim)[:count]


def sphere(key: PRNGKeyArray, count: int, dim: int, *, radius: float = 1.0) -> Float[Array, "s n"]:
    """`count` independent states, uniform on the sphere ‖x‖ = radius  [beyond R24].

    >>> import jax, jax.numpy as jnp, offspan
    >>> jnp.linalg.norm(offspan.sphere(jax.random.key(0), 2, 3, radius=5.0), axis=1).round(9).tolist()
    [5.0, 5.0]
    """
    shape = as_count("sphere", "count", count, least=1), as_count("sphere", "dim", dim, least=1)
    directions = jax.random.normal(as_key("sphere", key), shape)
    return as_positive("sphere", "radius", radius) * directions / jnp.linalg.norm(directions, axis=1, keepdims=True)


def grid(*axes: Any) -> Float[Array, "s n"]:
    """X_1 × … × X_n = {x : x_d ∈ X_d}, every combination of one value from each axis, the last axis running fastest  [beyond R24].

    A fixed coordinate is an axis of one value.

    >>> import offspan
    >>> offspan.grid([0.0, 1.0], [5.0]).tolist()
    [[0.0, 5.0], [1.0, 5.0]]
    """
    if not axes:
        raise OffspanError("grid: pass one list of values for each coordinate of the state.")
    values = [as_floats("grid", f"axes[{i}]", axis, shape=(None,), meaning="a list of values") for i, axis in enumerate(axes)]
    return jnp.stack([coordinate.ravel() for coordinate in jnp.meshgrid(*values, indexing="ij")], axis=1)


def seen_projector(x0s: Float[ArrayLike, "s n"]) -> Float[Array, "n n"]:
    """P_S = P_Sᵀ = P_S², the orthogonal projector onto the span of the seen states; I − P_S projects onto the unseen directions.

    P_S x_0 = x_0 for x_0 ∈ S, whatever the lengths and the number of the states in S  [R24, sec:prelim:extrapolation].

    >>> import jax.numpy as jnp, offspan
    >>> offspan.seen_projector(jnp.array([[1.0, 1.0], [2.0, 2.0]])).round(9).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    return _projector(_unit_rows(as_states("seen_projector", "x0s", x0s, None)))


def unseen_directions(x0s: Float[ArrayLike, "s n"]) -> Float[Array, "u n"]:
    """U: an orthonormal basis of S⊥, one direction a row, so that UᵀU = I − P_S  [R24, sec:prelim:extrapolation].

    Its number of rows is n − rank S, so it needs concrete states (`seen_projector` does not); no rows when S spans the space.

    >>> import jax.numpy as jnp, offspan
    >>> (5 * abs(offspan.unseen_directions(jnp.array([[3.0, 4.0]])))).round(9).tolist()  # (4, −3)/5, of either sign
    [[4.0, 3.0]]
    """
    X = as_states("unseen_directions", "x0s", x0s, None)
    if not is_concrete(X):
        raise OffspanError(
            "unseen_directions: the number of unseen directions depends on the values of `x0s`, which jit and vmap do not show; "
            "call it outside, or use `seen_projector`."
        )
    X = np.asarray(_unit_rows(X))
    _, singular_values, right = np.linalg.svd(X, full_matrices=True)
    rank = int(np.sum(singular_values > _rank_tolerance(X) * singular_values.max()))
    return jnp.asarray(right[rank:])


def _unit_rows(X: Float[Array, "s n"]) -> Float[Array, "s n"]:
    """Each state at length 1, zero states as they are: the same span, whatever the states' lengths."""
    largest = jnp.max(jnp.abs(X), axis=1, keepdims=True)
    zero = largest == 0
    X = X / jnp.where(zero, 1, largest)  # first to largest entry 1, so that no square overflows or vanishes
    return X / jnp.linalg.norm(jnp.where(zero, 1, X), axis=1, keepdims=True)


@jax.custom_jvp
def _projector(X: Float[Array, "s n"]) -> Float[Array, "n n"]:
    """V Vᵀ for the right singular vectors V of X whose singular values are not zero."""
    _, singular_values, right = jnp.linalg.svd(X, full_matrices=False)
    seen = singular_values > _rank_tolerance(X) * singular_values[0]
    V = jnp.where(seen[:, None], right, 0)
    return V.T @ V


@_projector.defjvp
def _projector_jvp(primals, tangents):
    """dP = N + Nᵀ with N = X⁺ dX (I − P), for a rank that stays; it exists where the singular vectors' own derivatives do not."""
    (X,), (dX,) = primals, tangents
    P = _projector(X)
    N = jnp.linalg.pinv(X, rtol=_rank_tolerance(X)) @ dX @ (jnp.eye(X.shape[1], dtype=X.dtype) - P)
    return P, N + N.T


def _rank_tolerance(X: Array | np.ndarray) -> float:
    """Singular values below this share of the largest one count as zero: a few times the rounding of an SVD."""
    return 10 * max(X.shape) * float(jnp.finfo(X.dtype).eps)
