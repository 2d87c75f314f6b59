"""A sweep of linear controllers: every combination of a spec's lists is a run, and all runs of one shape are one batch."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import jax
import numpy as np
import pydantic
import xarray as xr

from offspan.baselines import minimal_cost
from offspan.controllers import Linear
from offspan.errors import OffspanError, check_known
from offspan.experiments.parts import joined, part_names, seed_groups
from offspan.experiments.registry import FAMILIES
from offspan.experiments.spec import Arrays, Matrix, Name, OnChunk, Positive, Rate, Spec, Strict, Task, result_attributes
from offspan.problems import LQR
from offspan.states import basis
from offspan.training import Batch, Status, train_lqr_batch

STATUS_FLAGS = {"flag_values": np.array(list(Status), np.int8), "flag_meanings": " ".join(map(str, Status))}


class Matrices(Strict):
    """A system of one's own: x' = A x + B u with cost xᵀQx + uᵀRu; B and Q default to I, R to 0."""

    A: Matrix
    B: Matrix | None = None
    Q: Matrix | None = None
    R: Matrix | None = None


class LQRSpec(Spec):
    """A sweep of linear controllers: every combination of the lists below is a run, trained on e_1..e_n or on `seen_states`."""

    splits_by_seeds: ClassVar[bool] = True
    kind: Literal["lqr"] = "lqr"
    systems: list[str] = pydantic.Field(min_length=1)
    dim: list[Positive] = pydantic.Field(min_length=1)
    horizon: list[Positive] = pydantic.Field(min_length=1)
    seen: Annotated[list[Positive], pydantic.Field(min_length=1)] | None = None
    seen_states: Matrix | None = None
    learning_rate: list[Rate] = pydantic.Field(min_length=1)
    clip: Rate | None = None  # the largest norm of a gradient
    record_every: Positive = 100
    compare_with: str | None = None
    matrices: dict[Name, Matrices] = pydantic.Field({})

    @pydantic.model_validator(mode="after")
    def _fits_together(self):
        for system in self.systems:
            check_known("there is no system", system, [*FAMILIES, *self.matrices])
        if taken := set(self.matrices) & set(FAMILIES):
            raise OffspanError(f"[matrices.{min(taken)}] has the name of a family of systems; give it another")
        if unused := set(self.matrices) - set(self.systems):
            raise OffspanError(f"[matrices.{min(unused)}] is not named in `systems`")
        if (self.seen is None) == (self.seen_states is None):
            raise OffspanError("give either `seen`, numbers of basis states, or `seen_states`, a list of states")
        if self.seen is not None and max(self.seen) > min(self.dim):
            raise OffspanError(f"`seen` asks for {max(self.seen)} basis states, but `dim` goes down to {min(self.dim)}")
        if self.seen_states is not None and {len(x) for x in self.seen_states} != set(self.dim):
            raise OffspanError(f"`seen_states` must be states of length `dim`, which is {self.dim}")
        for name, own in self.matrices.items():
            if [len(own.A)] != self.dim:
                raise OffspanError(f"[matrices.{name}] has {len(own.A)} states, but `dim` is {self.dim}")
        # LQR says what is wrong with a matrix.
        controls = {self.problem(system, 0, self.dim[0], self.horizon[0]).control_dim for system in self.matrices}
        if len(controls | ({self.dim[0]} if set(self.systems) - set(self.matrices) else set())) > 1:
            raise OffspanError("the systems have different numbers of controls; give each its own spec")
        return self

    def problem(self, system: str, seed: int, dim: int, horizon: int) -> LQR:
        if system in self.matrices:
            own = self.matrices[system]
            return LQR(own.A, own.B, own.Q, own.R, horizon=horizon)
        return FAMILIES[system].make(seed, dim, horizon)

    def depends_on_seed(self, system: str) -> bool:
        return system in FAMILIES and FAMILIES[system].is_random

    def shapes(self) -> list[tuple[int, int]]:
        """(dim, horizon): each is a batch of its own."""
        return list(itertools.product(self.dim, self.horizon))

    def content(self) -> str:
        return ", ".join(self.systems)


SPEC = LQRSpec
SWEPT = ("system", "dim", "horizon", "learning_rate", "seen", "seed")
MEASURED = {"cost": "J(K; S)", "normalized_optimality": "E_opt(K) / E_opt(K_no-ext)", "normalized_cost": "E_cost(K) / E_cost(K_no-ext)"}
VARIABLES = {"status": SWEPT, "excess_training_cost": SWEPT, **dict.fromkeys(MEASURED, (*SWEPT, "iteration"))}
VARIABLES |= {name: (name,) for name in (*SWEPT, "iteration")}
ATTRIBUTES: dict[str, type] = {}


class Setting(NamedTuple):
    """One distinct run, for a given shape."""

    system: str
    learning_rate: float
    seen: int
    seed: int


def distinct_runs(spec: LQRSpec) -> tuple[list[Setting], np.ndarray]:
    """The runs that can differ, task by task, and for each (system, learning rate, seen, seed) which of them it is.

    A system that does not depend on the seed has one run for all seeds.
    """
    every = itertools.product(spec.systems, spec.learning_rate, seen_counts(spec), spec.seeds)
    every_run = [Setting(system, rate, seen, seed if spec.depends_on_seed(system) else spec.seeds[0]) for system, rate, seen, seed in every]
    distinct = sorted(dict.fromkeys(every_run), key=_group_of(spec))
    place = {run: i for i, run in enumerate(distinct)}
    shape = len(spec.systems), len(spec.learning_rate), len(seen_counts(spec)), len(spec.seeds)
    return distinct, np.array([place[run] for run in every_run]).reshape(shape)


def _group_of(spec: LQRSpec) -> Callable[[Setting], int]:
    """The place of the group of seeds that a run belongs to."""
    place = {seed: i for i, seeds in enumerate(seed_groups(spec, spec.seeds)) for seed in seeds}
    return lambda run: place[run.seed]


def seen_counts(spec: LQRSpec) -> list[int]:
    return spec.seen if spec.seen is not None else [len(spec.seen_states or [])]


def seen_set(spec: LQRSpec, dim: int, count: int) -> np.ndarray:
    states = basis(dim, count) if spec.seen_states is None else spec.seen_states
    return np.asarray(states, spec.precision)


def problems_of(spec: LQRSpec, runs: Sequence[Setting], dim: int, horizon: int) -> list[LQR]:
    """The system of each run; it is made once for all learning rates and seen states."""
    make = functools.cache(lambda system, seed: jax.tree.map(lambda M: M.astype(spec.precision), spec.problem(system, seed, dim, horizon)))
    return [make(run.system, run.seed) for run in runs]


def tasks(spec: LQRSpec) -> list[Task]:
    """One for each shape, or for some of its seeds."""
    return [
        Task(name, float(dim**2 * horizon * len(runs)))
        for dim, horizon in spec.shapes()
        for name, runs in _parts(spec, dim, horizon).items()
    ]


def _parts(spec: LQRSpec, dim: int, horizon: int) -> dict[str, list[Setting]]:
    """The runs of each task of a shape."""
    groups = [list(runs) for _, runs in itertools.groupby(distinct_runs(spec)[0], _group_of(spec))]
    return dict(zip(part_names(f"dim-{dim}-horizon-{horizon}", spec, len(groups)), groups, strict=True))


def run_task(spec: LQRSpec, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """The batch of one shape, or of some of its seeds."""
    dim, horizon = next(shape for shape in spec.shapes() if name in _parts(spec, *shape))
    runs = _parts(spec, dim, horizon)[name]
    problems = problems_of(spec, runs, dim, horizon)
    batch = train_lqr_batch(
        problems,
        [seen_set(spec, dim, run.seen) for run in runs],
        learning_rate=[run.learning_rate for run in runs],
        clip=spec.clip,
        iterations=spec.iterations,
        record_every=spec.record_every,
        resume=None if resume is None else restored(resume),
        on_chunk=lambda batch: on_chunk(batch.done / spec.iterations, batch.to_arrays()),
    )
    return batch.to_arrays()


def restored(arrays: Arrays) -> Batch:
    """A batch of linear controllers."""
    return Batch.from_arrays(arrays, Linear(np.zeros(arrays["weights.0"].shape[1:])))


def to_dataset(spec: LQRSpec, results: Mapping[str, Arrays]) -> xr.Dataset:
    """Matrices of smaller dimensions are filled up with NaN."""
    runs, place = distinct_runs(spec)
    batches = [restored(joined([results[name] for name in _parts(spec, *shape)])) for shape in spec.shapes()]
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
        problems = problems_of(spec, runs, dim, horizon)
        for name in systems:
            systems[name].append(np.stack([np.asarray(getattr(problem, name)) for problem in problems]))
        excess.append(
            batch.cost[:, -1] - [_least(problem, seen_set(spec, dim, run.seen)) for problem, run in zip(problems, runs, strict=True)]
        )

    data: dict[str, tuple] = {
        "K": ((*SWEPT, "control", "state"), swept(matrices([batch.K for batch in batches], most_controls, most_states))),
        "status": (SWEPT, swept([batch.codes for batch in batches]), STATUS_FLAGS),
        "iterations": (SWEPT, swept([batch.iterations for batch in batches]), {"long_name": "updates made"}),
        "excess_training_cost": (SWEPT, swept(excess), {"long_name": "J(K; S) − J*(S)"}),
    }
    for name, meaning in MEASURED.items():
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
    clip = {} if spec.clip is None else {"clip": spec.clip}
    return xr.Dataset(data, coords=coords, attrs={**result_attributes(spec), **clip})


def _least(problem: LQR, x0s: np.ndarray) -> float:
    """J*(S), or NaN where it is not known in closed form."""
    try:
        return float(_minimal_cost(problem, x0s))
    except OffspanError:
        return float("nan")


_minimal_cost = jax.jit(minimal_cost)  # one program for all runs with as many seen states
