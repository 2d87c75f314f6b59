"""One problem, many starts: how far apart are the controllers that policy gradient reaches?"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from offspan.experiments.kinds.results import STATUS_MEANING, attributes, status_numbers, stretch
from offspan.experiments.specs.lqr import StartsSpec
from offspan.states import basis
from offspan.statistics import largest_distance
from offspan.training import Status


class State(NamedTuple):
    """The controllers of all starts after `recorded[q]` updates, NaN where not yet made.

    A start that diverged failed at iteration `iterations[r]` and keeps its last finite K.
    """

    K: np.ndarray  # (q, r, m, n)
    status: np.ndarray  # (r,), of Status
    iterations: np.ndarray  # (r,)
    recorded: np.ndarray  # (q,)
    done: int


def state_type(part: int) -> type:
    return State


def train(spec: StartsSpec, part: int, earlier: list[State], resume: State | None, on_chunk: Callable[[State], Any]) -> State:
    """K ← K − η ∇J(K; S) from every start at once, kept every `record_every` iterations."""
    problem, S = spec.problem(), np.asarray(basis(spec.dim, spec.seen))
    state = resume or _beginning(spec)
    place = int(np.searchsorted(state.recorded, state.done))
    while state.done < spec.iterations:
        upto, K = int(state.recorded[place + 1]), state.K.copy()
        K[place + 1], status, iterations = stretch(
            [problem] * K.shape[1],
            [S] * K.shape[1],
            K[place],
            state.status,
            state.iterations,
            rate=spec.learning_rate,
            done=state.done,
            upto=upto,
        )
        place += 1
        state = State(K, status, iterations, state.recorded, upto)
        on_chunk(state)
    return state


def _beginning(spec: StartsSpec) -> State:
    shape = spec.starts, spec.dim, spec.dim
    starts = np.concatenate([spec.start_std * np.asarray(jax.random.normal(jax.random.key(seed), shape)) for seed in spec.seeds])
    recorded = np.unique(np.append(np.arange(0, spec.iterations, spec.record_every), spec.iterations))
    K = np.full((len(recorded), *starts.shape), np.nan, spec.precision)
    K[0] = starts
    return State(K, np.full(len(starts), Status.finished), np.zeros(len(starts), int), recorded, 0)


def to_dataset(spec: StartsSpec, states: list[State]) -> xr.Dataset:
    """Distances are +∞ once a start has diverged."""
    (state,) = states
    ended = state.iterations[state.status == Status.diverged].min(initial=spec.iterations + 1)
    distance = np.array([largest_distance(K) if done <= ended else np.inf for K, done in zip(state.K, state.recorded, strict=True)])
    with np.errstate(over="ignore"):  # the last finite controller of a start that diverged may have an infinite norm
        norm = np.median(np.linalg.norm(state.K, axis=(2, 3)), axis=1)
    relative = np.where(np.isfinite(distance), distance / np.where(np.isfinite(norm), norm, 1.0), np.inf)
    data: dict[str, tuple] = {
        "K": (("iteration", "start", "control", "state"), state.K),
        "status": ("start", status_numbers(state.status), STATUS_MEANING),
        "iterations": ("start", state.iterations, {"long_name": "updates made"}),
        "largest_distance": ("iteration", distance, {"long_name": "largest distance of two controllers, Frobenius norm"}),
        "median_norm": ("iteration", norm, {"long_name": "median norm of the controllers"}),
        "relative_distance": ("iteration", relative, {"long_name": "largest distance over the median norm"}),
    }
    settings = {key: getattr(spec, key) for key in ("system", "dim", "horizon", "seen", "control_cost", "learning_rate", "start_std")}
    return xr.Dataset(data, coords={"iteration": state.recorded}, attrs={**attributes(spec), **settings})
