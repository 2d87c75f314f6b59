"""What is known of each candidate before any training: the states that it visits, its gradient, its controls' derivative.

Each is a row of numbers for every candidate, in blocks, so that pools of ten thousand fit.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from offspan.controllers import flat_weights
from offspan.exploration import check_weights, state_gradients, visited_count
from offspan.problems.base import Problem
from offspan.rollout import Controller, rollout
from offspan.sizes import Rows


class Setting(NamedTuple):
    """The problem, candidates (c, n) to choose from, and the starts that training may begin with."""

    problem: Problem
    candidates: Float[Array, "c n"]
    controllers: Sequence[Controller]
    scale: Float[Array, "n"]

    @property
    def rollouts(self) -> int:
        """One from each candidate under each start."""
        return len(self.controllers) * len(self.candidates)


def scaled(setting: Setting) -> np.ndarray:
    return np.asarray(setting.candidates / setting.scale[None], float)


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    from scipy.spatial import distance  # which `import offspan` must not load

    return distance.cdist(a, b)


def visited_from(setting: Setting) -> list[Callable[[np.ndarray], np.ndarray]]:
    """For each start, what is visited from some of the candidates (i, v, n), in the coordinates x / scale."""
    count = visited_count(setting.problem)  # outside jit, where the value of R is known

    def of_start(controller: Controller) -> Callable[[np.ndarray], np.ndarray]:
        return lambda which: np.asarray(
            states_visited(setting.problem, controller, setting.candidates[which])[:, :count] / setting.scale[None, None], float
        )

    return [of_start(controller) for controller in setting.controllers]


@eqx.filter_jit
def states_visited(problem, controller, candidates):
    """x_0..x_H from each candidate."""
    return jax.vmap(lambda x0: rollout(problem, controller, x0).states)(candidates)


def gramians(setting: Setting) -> Rows:
    """G_x of each candidate, n² numbers, in the mean over starts."""
    (count, n), every = setting.candidates.shape, visited_from(setting)

    def make(which: np.ndarray) -> np.ndarray:
        return np.sum([np.einsum("cvi,cvj->cij", X, X).reshape(len(X), -1) for X in (visits(which) for visits in every)], axis=0) / len(
            every
        )

    return Rows(make, count, n * n, (setting.problem.horizon + 1) * n)


def gradients(setting: Setting) -> list[Rows]:
    """∇J(π; u) of each candidate u, for each start."""
    return _derivatives(setting, lambda controller, x0s: _state_gradients(setting.problem, controller, x0s), 1)


def tangents(setting: Setting) -> list[Rows]:
    """∂π_w(u)/∂w of each candidate u, for each start."""
    return _derivatives(setting, _controls_by_weights, setting.problem.control_dim)


def _derivatives(setting: Setting, derivative: Callable[..., Any], outputs: int) -> list[Rows]:
    def of_start(controller: Controller) -> Rows:
        weights = flat_weights(controller)[0].size
        make = lambda which: np.asarray(derivative(controller, setting.candidates[which]), float).reshape(len(which), -1)  # noqa: E731
        return Rows(make, len(setting.candidates), max(outputs * weights, 1), (setting.problem.horizon + 1) * setting.candidates.shape[1])

    return [of_start(controller) for controller in setting.controllers]


@eqx.filter_jit
def _state_gradients(problem, controller, candidates):
    return state_gradients(problem, controller, candidates)


@eqx.filter_jit
def _controls_by_weights(controller, candidates):
    w, with_weights = flat_weights(controller)
    check_weights("tangent kernel", controller, w)
    return jax.vmap(lambda x: jax.jacrev(lambda w: with_weights(w)(x))(w))(candidates)


def products(rows: Rows, which: np.ndarray) -> np.ndarray:
    """(i, c): inner products of some rows with all rows."""
    some = rows[which]
    return np.concatenate([some @ others.T for _, others in rows], axis=1)
