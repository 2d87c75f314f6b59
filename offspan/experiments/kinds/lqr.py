"""A sweep of linear controllers: from a spec to its distinct runs, and from their batches to one labelled result."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from offspan.baselines import minimal_cost
from offspan.experiments.kinds.results import STATUS_MEANING, attributes, status_numbers
from offspan.experiments.specs.lqr import LQRSpec
from offspan.problems import LQR
from offspan.states import basis
from offspan.training import LQRBatch, train_lqr_batch

SWEPT = ("system", "dim", "horizon", "learning_rate", "seen", "seed")


class Task(NamedTuple):
    """One distinct run, for a given shape."""

    system: str
    learning_rate: float
    seen: int
    seed: int


def distinct_tasks(spec: LQRSpec) -> tuple[list[Task], np.ndarray]:
    """The runs that can differ, and for each (system, learning rate, seen, seed) which of them it is.

    A system that does not depend on the seed has one run for all seeds.
    """
    every = itertools.product(spec.systems, spec.learning_rate, seen_counts(spec), spec.seeds)
    tasks = [Task(system, rate, seen, seed if spec.depends_on_seed(system) else spec.seeds[0]) for system, rate, seen, seed in every]
    distinct = list(dict.fromkeys(tasks))
    place = {task: i for i, task in enumerate(distinct)}
    shape = len(spec.systems), len(spec.learning_rate), len(seen_counts(spec)), len(spec.seeds)
    return distinct, np.array([place[task] for task in tasks]).reshape(shape)


def seen_counts(spec: LQRSpec) -> list[int]:
    return spec.seen if spec.seen is not None else [len(spec.seen_states or [])]


def seen_set(spec: LQRSpec, dim: int, count: int) -> np.ndarray:
    states = basis(dim, count) if spec.seen_states is None else spec.seen_states
    return np.asarray(states, spec.precision)


def problem_of(spec: LQRSpec, task: Task, dim: int, horizon: int) -> LQR:
    return jax.tree.map(lambda M: M.astype(spec.precision), spec.problem(task.system, task.seed, dim, horizon))


def state_type(part: int) -> type:
    return LQRBatch


def train(spec: LQRSpec, part: int, earlier: list[LQRBatch], resume: LQRBatch | None, on_chunk: Callable[[LQRBatch], Any]) -> LQRBatch:
    """The batch of one shape."""
    dim, horizon = spec.shapes()[part]
    tasks, _ = distinct_tasks(spec)
    return train_lqr_batch(
        [problem_of(spec, task, dim, horizon) for task in tasks],
        [seen_set(spec, dim, task.seen) for task in tasks],
        learning_rate=[task.learning_rate for task in tasks],
        iterations=spec.iterations,
        record_every=spec.record_every,
        resume=resume,
        on_chunk=on_chunk,
    )


def to_dataset(spec: LQRSpec, batches: list[LQRBatch]) -> xr.Dataset:
    """One labelled result of the batches of all shapes. Matrices of smaller dimensions are filled up with NaN."""
    tasks, place = distinct_tasks(spec)
    outer = len(spec.dim), len(spec.horizon)
    most_states, most_controls = max(batch.K.shape[2] for batch in batches), max(batch.K.shape[1] for batch in batches)

    def swept(values: list[np.ndarray]) -> np.ndarray:
        """Values of the distinct runs of each shape, laid out as (system, dim, horizon, learning_rate, seen, seed, …)."""
        laid_out = np.stack([value[place] for value in values]).reshape(*outer, *place.shape, *values[0].shape[1:])
        return np.moveaxis(laid_out, (0, 1), (1, 2))

    def matrices(values: list[np.ndarray], rows: int, columns: int) -> list[np.ndarray]:
        fill = lambda M: np.pad(M, ((0, 0), (0, rows - M.shape[1]), (0, columns - M.shape[2])), constant_values=np.nan)  # noqa: E731
        return [fill(value) for value in values]

    systems: dict[str, list[np.ndarray]] = {name: [] for name in "ABQR"}
    excess = []
    for (dim, horizon), batch in zip(spec.shapes(), batches, strict=True):
        problems = [problem_of(spec, task, dim, horizon) for task in tasks]
        for name in systems:
            systems[name].append(np.stack([np.asarray(getattr(problem, name)) for problem in problems]))
        excess.append(
            batch.cost[:, -1] - [_least(problem, seen_set(spec, dim, task.seen)) for problem, task in zip(problems, tasks, strict=True)]
        )

    data: dict[str, tuple] = {
        "K": ((*SWEPT, "control", "state"), swept(matrices([batch.K for batch in batches], most_controls, most_states))),
        "status": (SWEPT, swept([status_numbers(batch.status) for batch in batches]), STATUS_MEANING),
        "iterations": (SWEPT, swept([batch.iterations for batch in batches]), {"long_name": "updates made"}),
        "excess_training_cost": (SWEPT, swept(excess), {"long_name": "J(K; S) − J*(S)"}),
    }
    for name, meaning in (
        ("cost", "J(K; S)"),
        ("normalized_optimality", "E_opt(K) / E_opt(K_no-ext)"),
        ("normalized_cost", "E_cost(K) / E_cost(K_no-ext)"),
    ):
        data[name] = (*SWEPT, "iteration"), swept([getattr(batch, name) for batch in batches]), {"long_name": meaning}
    rows = {"A": most_states, "B": most_states, "Q": most_states, "R": most_controls}
    columns = {"A": most_states, "B": most_controls, "Q": most_states, "R": most_controls}
    for name, values in systems.items():
        # One matrix for each system, dimension and seed: neither horizon, learning rate nor seen states change it.
        laid_out = swept(matrices(values, rows[name], columns[name]))[:, :, 0, 0, 0]
        data[name] = ("system", "dim", "seed", f"{name}_row", f"{name}_column"), laid_out
    states = np.full((len(spec.dim), len(seen_counts(spec)), max(seen_counts(spec)), most_states), np.nan)
    for i, dim in enumerate(spec.dim):
        for j, count in enumerate(seen_counts(spec)):
            states[i, j, :count, :dim] = seen_set(spec, dim, count)
    data["seen_states"] = ("dim", "seen", "seen_state", "state"), states, {"long_name": "S, one state a row"}
    coords = {
        "system": spec.systems,
        "dim": spec.dim,
        "horizon": spec.horizon,
        "learning_rate": spec.learning_rate,
        "seen": seen_counts(spec),
        "seed": spec.seeds,
        "iteration": batches[0].recorded,
    }
    return xr.Dataset(data, coords=coords, attrs=attributes(spec))


def _least(problem: LQR, x0s: np.ndarray) -> float:
    """J*(S), or NaN where it is not known in closed form."""
    try:
        return float(minimal_cost(problem, x0s))
    except ValueError:
        return float("nan")
