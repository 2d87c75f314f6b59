"""Extrapolation maps: what a controller costs, or whether it succeeds, over a whole region of initial states."""

import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from offspan.errors import OffspanError, as_count, as_floats, as_states
from offspan.host import own_errors
from offspan.problems.base import Problem, as_problem
from offspan.problems.variants import as_noise_key
from offspan.rollout import Controller, rollout
from offspan.sizes import blocks


class ExtrapolationMap(NamedTuple):
    """`values[i]`, or `values[i, j]`, = J(π; x) at `axes[0][i]` and `axes[1][j]` of the coordinates; ∞ where the cost overflows.

    With `of_success`, 1 where x ends as asked, else 0  [beyond R24].

    >>> import offspan
    >>> costs = offspan.extrapolation_map(offspan.identity(1, horizon=2), offspan.Linear([[-0.5]]), {0: [1.0, 4.0]})
    >>> costs.axes[0].tolist(), costs.values.tolist()  # (1 + 1/4 + 1/16) x²
    ([1.0, 4.0], [1.3125, 21.0])
    """

    coordinates: tuple[int, ...]
    axes: tuple[np.ndarray, ...]
    values: np.ndarray
    of_success: bool


def extrapolation_map(
    problem: Problem,
    controller: Controller,
    axes: Mapping[int, Any],
    *,
    at: Any = None,
    success: Callable[..., Any] | None = None,
    key: Any = None,
    samples: int = 1,
) -> ExtrapolationMap:
    """J(π; x) for all x with x_d ∈ axes[d] for the coordinates d in `axes`, and the others as in `at` (zero by default)  [beyond R24].

    With `success`, a function of the last state x_H, it is 1 where that holds and 0 elsewhere. Of a `Noisy` problem it is the mean over
    `samples` trajectories, with the same noise from every state.

    >>> import jax.numpy as jnp, offspan
    >>> K = -jnp.eye(2).at[1, 1].set(0.0)
    >>> offspan.extrapolation_map(offspan.identity(2, horizon=3), offspan.Linear(K), {0: [0.0, 1.0], 1: [0.0, 1.0]}).values.tolist()
    [[0.0, 4.0], [1.0, 5.0]]
    """
    where = "extrapolation_map"
    n = as_problem(where, problem).state_dim
    if not isinstance(axes, Mapping) or len(axes) not in (1, 2) or not all(_is_index(d, n) for d in axes):
        raise OffspanError(
            f"{where}: `axes` must give values for one or two of the coordinates 0..{n - 1}, such as {{0: jnp.linspace(0, 1, 50)}}."
        )
    values = {operator.index(d): as_floats(where, f"axes[{d}]", one, shape=(None,), meaning="a list of values") for d, one in axes.items()}
    x = jnp.zeros(n) if at is None else as_floats(where, "at", at, shape=(n,), meaning=f"shape ({n},): one state")
    x0s = grid_states(values, x)
    result = outcomes(where, problem, controller, x0s, success, key, samples)[0 if success is None else 1]
    shape = tuple(map(len, values.values()))
    return ExtrapolationMap(tuple(values), tuple(np.asarray(one) for one in values.values()), result.reshape(shape), success is not None)


def grid_states(axes: Mapping[int, Any], at: Any) -> Float[Array, "q n"]:
    """All states with x_d ∈ axes[d], the last coordinate fastest, and the others as in `at`."""
    grid = jnp.stack(jnp.meshgrid(*map(jnp.asarray, axes.values()), indexing="ij"), axis=-1)
    x = jnp.asarray(at)
    return jnp.broadcast_to(x, (*grid.shape[:-1], x.shape[0])).at[..., jnp.array(list(axes))].set(grid).reshape(-1, x.shape[0])


Region = dict[int, tuple[float, float]]  # the interval of each coordinate that varies


def as_region(where: str, region: Any, n: int) -> Region:
    try:
        box = {operator.index(d): (float(low), float(high)) for d, (low, high) in region.items()}
    except (TypeError, ValueError, AttributeError):
        box = {}
    if not box or not all(0 <= d < n and np.isfinite([low, high]).all() and low < high for d, (low, high) in box.items()):
        raise OffspanError(
            f"{where}: `region` is {region!r}, but must give intervals, low < high, for some coordinates 0..{n - 1}: {{0: (-1.0, 1.0)}}."
        )
    return dict(sorted(box.items()))


def drawn_from(key: Array, count: int, region: Region, centre: np.ndarray) -> np.ndarray:
    """States uniform in the region, whose other coordinates are those of the centre."""
    states = np.tile(centre, (count, 1))
    low, high = np.array(list(region.values())).T
    states[:, list(region)] = low + (high - low) * np.asarray(jax.random.uniform(key, (count, len(region))))
    return states


def widths(region: Region, n: int) -> np.ndarray:
    """Of the region's intervals, for every coordinate; one that does not vary has the width of the widest that does."""
    varied = {d: high - low for d, (low, high) in region.items()}
    return np.array([varied.get(d, max(varied.values())) for d in range(n)])


def strongest_pairs(region: Region, states: np.ndarray, values: np.ndarray, count: int) -> list[tuple[int, ...]]:
    """All pairs of the `count` coordinates that explain most of the values, by the variance between bins of each; the strongest first."""
    if len(region) == 1:
        return [tuple(region)]

    def explained(d: int) -> float:
        bins = np.array_split(values[np.argsort(states[:, d])], min(10, len(values)))
        return float(np.var([part.mean() for part in bins]))

    strongest = sorted(region, key=explained, reverse=True)[:count]
    return [tuple(sorted(pair)) for pair in itertools.combinations(strongest, 2)]


def costs(problem: Problem, controller: Controller, states: Any, *, key: Any = None, samples: int = 1) -> np.ndarray:
    """J(π; x) of each of the states (s, n): s numbers, ∞ where the cost overflows. The worst k are `np.argsort(-costs(…))[:k]`.

    Of a `Noisy` problem each is the mean over `samples` trajectories, with the same noise from every state  [beyond R24].

    >>> import offspan
    >>> offspan.costs(offspan.identity(1, horizon=2), offspan.Linear([[-0.5]]), [[1.0], [4.0]]).tolist()  # (1 + 1/4 + 1/16) x²
    [1.3125, 21.0]
    """
    x0s = as_states("costs", "states", states, as_problem("costs", problem).state_dim)
    return outcomes("costs", problem, controller, x0s, None, key, samples)[0]


def outcomes(
    where: str, problem: Problem, controller: Controller, x0s: Array, success: Callable[..., Any] | None, key: Any, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each state J(π; x), and the share of trajectories whose last state is a `success` (NaN where that is not given)."""
    noise_key = as_noise_key(where, problem, key)
    as_count(where, "samples", samples, least=1)
    keys = None if noise_key is None else jax.random.split(noise_key, samples)
    some = blocks(len(x0s), (problem.horizon + 1) * (problem.state_dim + problem.control_dim) * (1 if keys is None else samples))
    with own_errors() as finished:
        costs, last = zip(*(finished(_ends(problem, controller, x0s[one], keys)) for one in some), strict=True)
    costs, last = np.concatenate([np.asarray(part).mean(axis=1) for part in costs]), jnp.concatenate(last)
    costs = np.where(np.isfinite(costs), costs, np.inf)
    if success is None:
        return costs, np.full(len(x0s), np.nan)
    if not callable(success):
        raise OffspanError(f"{where}: `success` is {success!r}, but must be a function of the last state.")
    try:
        answers = jax.vmap(jax.vmap(success))(last)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        raise OffspanError(
            f"{where}: `success` cannot be traced by jax; write jnp for np, `&` for `and`, `|` for `or`, jnp.where for `if`."
        ) from None
    if getattr(answers, "shape", None) != last.shape[:2] or answers.dtype != bool:
        returned = f"{answers.dtype} of shape {answers.shape[2:]}" if hasattr(answers, "dtype") else f"a {type(answers).__name__}"
        raise OffspanError(f"{where}: `success` must return one truth value for one state, but returned {returned}.")
    # A comparison with NaN may be true: what overflowed did not succeed.
    return costs, np.asarray(answers & jnp.all(jnp.isfinite(last), axis=2), float).mean(axis=1)


def _is_index(d: Any, n: int) -> bool:
    try:
        return 0 <= operator.index(d) < n
    except TypeError:
        return False


@eqx.filter_jit
def _ends(problem, controller, x0s, keys):
    """J from each state, and x_H, for each key; for one without noise."""

    def of_one(x0, key=None):
        trajectory = rollout(problem, controller, x0, key=key)
        return problem.cost_scale * trajectory.costs.sum(), trajectory.states[-1]

    if keys is None:
        return jax.tree.map(lambda values: values[:, None], jax.vmap(of_one)(x0s))
    return jax.vmap(lambda x0: jax.vmap(lambda key: of_one(x0, key))(keys))(x0s)
