"""Problems made of problems: with noise, or shortened. Their `step` and `stage_cost` are the inner problem's; rollouts do the rest."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from offspan.errors import OffspanError, as_floats, as_key, is_concrete
from offspan.problems.base import Problem, as_floating


class Variant(Problem):
    """A problem with something added to how it is rolled out."""

    problem: Problem

    def _copy_fields(self, problem: Problem) -> None:
        self.problem = problem
        self.state_dim, self.control_dim, self.horizon = problem.state_dim, problem.control_dim, problem.horizon
        self.cost_scale, self.control_bounds = problem.cost_scale, problem.control_bounds

    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        return as_floating(self.problem.step(x, u), x.dtype)

    def stage_cost(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, ""]:
        return as_floating(self.problem.stage_cost(x, u), x.dtype)

    def done(self, x: Float[Array, "n"]) -> Bool[Array, ""] | None:
        return self.problem.done(x)

    @property
    def coordinates(self) -> tuple[str, ...]:
        return self.problem.coordinates


class Noisy(Variant):
    """x_{h+1} = step(x_h, u_h) + P w_h with u_h = π(x_h) + C ξ_h, where ξ_h and w_h are independent and N(0, I)  [beyond R24].

    `control` is C and `process` is P: a number c stands for c·I, a vector for a diagonal matrix, and a matrix may have any number of
    columns. The stage cost sees the noisy control. `rollout` and `cost` draw the noise from the `key` that they are given, so the same key
    is the same noise for every controller; `noisy.problem` is the problem without noise.

    >>> import jax, jax.numpy as jnp, offspan
    >>> noisy = offspan.Noisy(offspan.identity(1, horizon=2), process=0.5)
    >>> sampled = offspan.cost(noisy, offspan.Linear([[-1.0]]), jnp.array([[1.0]]), key=jax.random.key(0), samples=100_000)
    >>> round(float(sampled), 1), float(offspan.expected_cost(noisy, jnp.array([[-1.0]]), jnp.array([[1.0]])))  # 1 + 1/4 + 1/4
    (1.5, 1.5)
    """

    control: Float[Array, "m _"] | None  # None: no such noise
    process: Float[Array, "n _"] | None

    def __init__(self, problem: Problem, *, control: Any = 0.0, process: Any = 0.0):
        if not isinstance(problem, Problem) or isinstance(problem, Variant):
            raise OffspanError(f"Noisy: `problem` is a {type(problem).__name__}, but must be a problem without noise.")
        self._copy_fields(problem)
        self.control = _factor("control", control, problem.control_dim)
        self.process = _factor("process", process, problem.state_dim)

    def draw(self, key: PRNGKeyArray, count: int) -> tuple[Float[Array, "s t m"] | None, Float[Array, "s h n"] | None]:
        """C ξ_h for h = 0..H and P w_h for h = 0..H−1, of `count` trajectories."""
        key_control, key_process = jax.random.split(key)
        H, C, P = self.horizon, self.control, self.process
        return (
            None if C is None else jax.random.normal(key_control, (count, H + 1, C.shape[1]), C.dtype) @ C.T,
            None if P is None else jax.random.normal(key_process, (count, H, P.shape[1]), P.dtype) @ P.T,
        )


def _factor(name: str, given: Any, size: int) -> Float[Array, "size _"] | None:
    """The matrix that multiplies white noise; None where it is zero."""
    try:
        dimensions = np.ndim(given)
    except ValueError:  # of a ragged list, which `as_floats` refuses
        dimensions = 2
    shape = {0: (), 1: (size,)}.get(dimensions, (size, None))
    meaning = f"a number, {size} numbers, or a matrix of {size} rows"
    values = as_floats("Noisy", name, given, shape=shape, meaning=meaning)
    if is_concrete(values):
        if dimensions < 2 and np.any(np.asarray(values) < 0):
            raise OffspanError(f"Noisy: `{name}` is {given!r}, but a standard deviation must not be negative.")
        if not np.any(np.asarray(values)):
            return None
    return {0: lambda: values * jnp.eye(size, dtype=values.dtype), 1: lambda: jnp.diag(values)}.get(dimensions, lambda: values)()


class Truncated(Variant):
    """Σ_{h=0}^{last} γ^h stage_cost(x_h, u_h), `last` ≤ H  [beyond R24].

    `last` and γ are arrays: a schedule changes them, and the compiled program stays.
    Later steps are left out: in a trajectory, the state stays at x_last, and the last cost is γ^last c(x_last, u).

    >>> import jax.numpy as jnp, offspan
    >>> from offspan.problems.variants import Truncated
    >>> grows, one = offspan.Linear([[1.0]]), jnp.array([[1.0]])  # x_h = 2^h
    >>> [float(offspan.cost(Truncated(offspan.identity(1, horizon=9), last, 1.0), grows, one)) for last in (1, 2)]
    [5.0, 21.0]
    """

    last: Int[Array, ""]
    discount: Float[Array, ""]

    def __init__(self, problem: Problem, last: Any, discount: Any = 1.0):
        self._copy_fields(problem)
        self.last, self.discount = jnp.asarray(last), jnp.asarray(discount, float)

    def weights(self) -> Float[Array, "t"]:
        """γ^h for h < last; 0 while the state stays constant; and γ^last at the end."""
        h = jnp.arange(self.horizon + 1)
        return jnp.where(h == self.horizon, self.discount**self.last, jnp.where(h < self.last, self.discount**h, 0.0))


def layers(problem: Problem) -> tuple[Problem, Noisy | None, Truncated | None]:
    """The plain problem, its noise, and how it is shortened."""
    truncated = problem if isinstance(problem, Truncated) else None
    inner = truncated.problem if truncated is not None else problem
    noisy = inner if isinstance(inner, Noisy) else None
    return (inner if noisy is None else noisy.problem), noisy, truncated


def is_noisy(problem: Problem) -> bool:
    noisy = layers(problem)[1]
    return noisy is not None and not (noisy.control is None and noisy.process is None)


def as_noise_key(where: str, problem: Problem, key: Any) -> PRNGKeyArray | None:
    """The key that noise is drawn from; None where there is no noise."""
    if not is_noisy(problem):
        return None
    if key is None:
        raise OffspanError(f"{where}: `key` is missing: the problem is Noisy, so pass `key=jax.random.key(0)`.")
    return cast(PRNGKeyArray, as_key(where, key))


def without_noise(problem: Problem) -> Problem:
    return layers(problem)[0]
