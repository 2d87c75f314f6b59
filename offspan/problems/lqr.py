"""Linear systems with quadratic cost [R24, sec:prelim:policy_grad_lqr], and the families that the paper studies."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import ArrayLike

from offspan.errors import OffspanError, as_count, as_floats, as_key, is_concrete
from offspan.problems.base import Problem, as_names


class LQR(Problem):
    """x_{h+1} = A x_h + B u_h, with stage cost x_hᵀ Q x_h + u_hᵀ R u_h over h = 0..H  [R24, eq:general_cost, eq:state_evol].

    `B` (n×m) and `Q` default to the identity, `R` (m×m) to zero; `Q` and `R` are symmetric and positive semidefinite
    (up to float32 rounding; what is stored is exactly symmetric).

    >>> import jax.numpy as jnp, offspan
    >>> problem = offspan.LQR([[0.0, 1.0], [1.0, 0.0]], [[0.0], [2.0]], horizon=4)
    >>> problem.step(jnp.array([3.0, 4.0]), jnp.array([5.0])).tolist()
    [4.0, 13.0]
    """

    A: Float[Array, "n n"]
    B: Float[Array, "n m"]
    Q: Float[Array, "n n"]
    R: Float[Array, "m m"]
    names: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        A: ArrayLike,
        B: ArrayLike | None = None,
        Q: ArrayLike | None = None,
        R: ArrayLike | None = None,
        *,
        horizon: int,
        coordinates: Sequence[str] | None = None,
    ):
        A = as_floats("LQR", "A", A, shape=(None, None), meaning="shape (n, n), the matrix of x' = A x + B u")
        n = A.shape[0]
        if A.shape != (n, n):
            raise OffspanError(f"LQR: `A` has shape {A.shape}, but must be square: x' = A x + B u, column vectors.")
        B = jnp.eye(n, dtype=A.dtype) if B is None else as_floats("LQR", "B", B, shape=(None, None), meaning="shape (n, m)")
        m = B.shape[1]
        if B.shape[0] != n:
            raise OffspanError(
                f"LQR: `B` has shape {B.shape} but `A` is {n}×{n}, so `B` needs {n} rows (x' = A x + B u, column vectors). "
                "Written for row vectors? Pass `A.T` and `B.T`."
            )
        Q = jnp.eye(n, dtype=A.dtype) if Q is None else _cost_matrix("Q", Q, n, "state")
        R = jnp.zeros((m, m), A.dtype) if R is None else _cost_matrix("R", R, m, "control")
        dtype = jnp.result_type(A, B, Q, R)
        self.A, self.B, self.Q, self.R = (M.astype(dtype) for M in (A, B, Q, R))
        self.state_dim, self.control_dim, self.cost_scale, self.control_bounds = n, m, 1.0, None
        self.horizon = as_count("LQR", "horizon", horizon, least=1)
        self.names = as_names("LQR", coordinates, n)

    @property
    def coordinates(self) -> tuple[str, ...]:
        return super().coordinates if self.names is None else self.names

    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        return self.A @ x + self.B @ u

    def stage_cost(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, ""]:
        return x @ self.Q @ x + u @ self.R @ u


def _cost_matrix(name: str, value: ArrayLike, dim: int, acts_on: str) -> Array:
    """`value` as a symmetric matrix with eigenvalues ≥ 0, up to the rounding of a product Z Zᵀ in float32, where many a file was made."""
    M = as_floats("LQR", name, value, shape=(dim, dim), meaning=f"shape ({dim}, {dim}), one row and column for each {acts_on}")
    if is_concrete(M):
        entries = np.asarray(M, float)
        rounding = 2 * dim * np.finfo(np.float32).eps * np.abs(entries).max()
        asymmetry = np.abs(entries - entries.T).max()
        if asymmetry > rounding:
            raise OffspanError(
                f"LQR: `{name}` is not symmetric (it differs from its transpose by {asymmetry:.2g}); pass `({name} + {name}.T) / 2`, "
                "which gives the same cost."
            )
        smallest = np.linalg.eigvalsh(entries)[0]
        if smallest < -rounding:
            raise OffspanError(
                f"LQR: `{name}` is not positive semidefinite (smallest eigenvalue {smallest:.2g}), so the cost would have no minimum; "
                f"pass a `{name}` with eigenvalues ≥ 0, such as `Z @ Z.T`."
            )
    return (M + M.T) / 2


def identity(dim: int, *, horizon: int) -> LQR:
    """A = B = Q = I: states never leave the span of the seen ones, so nothing is explored  [R24, prop:no_exploration_no_extrapolation].

    >>> import offspan
    >>> offspan.gramian(offspan.identity(2, horizon=3), offspan.basis(2, 1)).tolist()  # e_1, three times
    [[3.0, 0.0], [0.0, 0.0]]
    """
    return LQR(jnp.eye(as_count("identity", "dim", dim, least=1)), horizon=horizon)


def shift(dim: int, *, horizon: int) -> LQR:
    """A = Σ_d e_{d%D+1} e_dᵀ: from e_1 the states run through e_2, …, e_D and round again  [R24, prop:shift].

    >>> import offspan
    >>> offspan.shift(3, horizon=2).A.tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    return LQR(jnp.roll(jnp.eye(as_count("shift", "dim", dim, least=1)), 1, axis=0), horizon=horizon)


def gaussian(key: PRNGKeyArray, dim: int, *, horizon: int) -> LQR:
    """A with independent entries N(0, 1/D), B = Q = I: a typical system  [R24, thm:typical_system].

    >>> import jax, offspan
    >>> A = offspan.gaussian(jax.random.key(0), 100, horizon=2).A
    >>> round(float(100 * A.var()), 1)  # the variance of 100² entries, times D
    1.0
    """
    return LQR(_gaussian_matrix(as_key("gaussian", key), as_count("gaussian", "dim", dim, least=1)), horizon=horizon)


def gaussian_abq(key: PRNGKeyArray, dim: int, *, horizon: int) -> LQR:
    """A, B and Z with independent entries N(0, 1/D), Q = Z Zᵀ  [R24, fig:lqr_experiments_rnd_B_Q].

    >>> import jax, offspan
    >>> problem = offspan.gaussian_abq(jax.random.key(0), 100, horizon=2)
    >>> round(float(problem.Q.trace() / 100), 1), round(float(100 * problem.B.var()), 1)  # E tr Q = E ‖Z‖² = D
    (1.0, 1.0)
    """
    key_a, key_b, key_z = jax.random.split(as_key("gaussian_abq", key), 3)
    dim = as_count("gaussian_abq", "dim", dim, least=1)
    Z = _gaussian_matrix(key_z, dim)
    return LQR(_gaussian_matrix(key_a, dim), _gaussian_matrix(key_b, dim), Z @ Z.T, horizon=horizon)


def _gaussian_matrix(key: PRNGKeyArray, dim: int) -> Float[Array, "n n"]:
    return jax.random.normal(key, (dim, dim)) / dim**0.5


def as_lqr(where: str, problem: Problem) -> LQR:
    """`problem`, if it is an LQR."""
    if not isinstance(problem, LQR):
        raise OffspanError(
            f"{where}: `problem` is a {type(problem).__name__}, but this is defined for an LQR only; for other systems there are `train`, "
            "`extrapolation` and `audit`."
        )
    return problem
