"""A sweep of linear controllers: every combination of a spec's lists is a run, and all runs of one shape are one batch."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

import jax
import numpy as np
import pydantic
import xarray as xr

from offspan.baselines import minimal_cost
from offspan.controllers import Linear
from offspan.errors import OffspanError, check_known
from offspan.experiments.estimate import Estimate, linear, one_after_another
from offspan.experiments.parts import joined, part_names, seed_groups
from offspan.experiments.registry import FAMILIES
from offspan.experiments.spec import Arrays, Matrix, Name, OnChunk, Positive, Rate, Spec, Strict, Task, result_attributes
from offspan.problems import LQR
from offspan.states import basis
from offspan.training import Batch, train_lqr_batch
from offspan.training.stopping import ENDS

OF_A_RUN = 500.0  # bytes of Python's objects: its setting, and its places in lists
STATUS_FLAGS = {"flag_values": np.array(ENDS, np.int8), "flag_meanings": " ".join(map(str, ENDS))}


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
    compare_with: Name | None = None
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

    def estimate(self) -> Estimate:
        """Each shape is trained on its own; at the end there are all of them, and the result, in which matrices have the largest shape."""
        counts, rates, seeds = seen_counts(self), len(self.learning_rate), len(self.seeds)
        random = sum(map(self.depends_on_seed, self.systems))
        runs = rates * (random * seeds + len(self.systems) - random)  # of each number of seen states
        at_once = min(runs, rates * (random * (self.seeds_per_task or seeds) + len(self.systems)))
        own = next(iter(self.matrices.values()), None)
        controls = {dim: len(own.B[0]) if own is not None and own.B is not None else dim for dim in self.dim}

        def trained(count: int) -> Estimate:
            """So many runs of each number of seen states."""
            options = self.iterations, self.record_every
            return one_after_another(
                linear(dict.fromkeys(counts, count), dim, controls[dim], horizon, *options) for dim, horizon in self.shapes()
            )

        records, most, shapes = -(-self.iterations // self.record_every) + 1, max(self.dim), self.shapes()
        kept = sum(8.0 * runs * len(counts) * (3 * records + 2 * dim * controls[dim]) for dim, _ in shapes)
        cells, systems = len(self.systems) * rates * len(counts) * seeds * len(shapes), len(self.systems) * len(self.dim) * seeds
        result = 8.0 * (cells * (6 * records + 3 * most**2) + 8 * systems * most**2)
        objects = OF_A_RUN * cells / len(shapes)
        return trained(runs)._replace(memory=objects + max(trained(at_once).memory, kept + result))


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


def problems_of(spec: LQRSpec, runs: list[Setting], dim: int, horizon: int) -> list[LQR]:
    """The system of each run, with NumPy matrices; each is made once."""
    made: dict[tuple[str, int], LQR] = {}
    for system in spec.systems:
        seeds = list(dict.fromkeys(run.seed for run in runs if run.system == system))
        made |= {(system, seed): one for seed, one in zip(seeds, _made(spec, system, seeds, dim, horizon), strict=True)}
    return [made[run.system, run.seed] for run in runs]


def _made(spec: LQRSpec, system: str, seeds: list[int], dim: int, horizon: int) -> Iterator[LQR]:
    """Random systems by the thousand, which takes the time of a few; the bits are those of one at a time, as nothing is fused."""
    make = FAMILIES[system].make if spec.depends_on_seed(system) else lambda seed, dim, horizon: spec.problem(system, 0, dim, horizon)
    for some in np.array_split(np.asarray(seeds, np.uint32), range(1_000, len(seeds), 1_000)) if seeds else ():
        stacked = jax.vmap(lambda seed: make(seed, dim, horizon))(some)
        stacked = jax.tree.map(lambda M: np.asarray(M, spec.precision), stacked)
        yield from (jax.tree.map(lambda M, i=i: M[i], stacked) for i in range(len(some)))


def tasks(spec: LQRSpec) -> list[Task]:
    """One for each shape, or for some of its seeds."""
    groups = _groups(spec)
    return [
        Task(name, float(dim**2 * horizon * len(runs)))
        for dim, horizon in spec.shapes()
        for name, runs in zip(_names(spec, dim, horizon, groups), groups, strict=True)
    ]


def _groups(spec: LQRSpec) -> list[list[Setting]]:
    """The runs of each task of a shape."""
    return [list(runs) for _, runs in itertools.groupby(distinct_runs(spec)[0], _group_of(spec))]


def _names(spec: LQRSpec, dim: int, horizon: int, groups: list[list[Setting]]) -> list[str]:
    return part_names(f"dim-{dim}-horizon-{horizon}", spec, len(groups))


def run_task(spec: LQRSpec, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """The batch of one shape, or of some of its seeds."""
    groups = _groups(spec)
    (dim, horizon), names = next((shape, names) for shape in spec.shapes() if name in (names := _names(spec, *shape, groups)))
    runs = groups[names.index(name)]
    seen = {count: seen_set(spec, dim, count) for count in seen_counts(spec)}
    batch = train_lqr_batch(
        problems_of(spec, runs, dim, horizon),
        [seen[run.seen] for run in runs],
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
    groups = _groups(spec)
    batches = [restored(joined([results[name] for name in _names(spec, *shape, groups)])) for shape in spec.shapes()]
    outer = len(spec.dim), len(spec.horizon)
    most_states, most_controls = max(batch.K.shape[2] for batch in batches), max(batch.K.shape[1] for batch in batches)

    def swept(values: list[np.ndarray]) -> np.ndarray:
        """Values of the distinct runs of each shape, laid out as (system, dim, horizon, learning_rate, seen, seed, …)."""
        laid_out = np.stack([value[place] for value in values]).reshape(*outer, *place.shape, *values[0].shape[1:])
        return np.moveaxis(laid_out, (0, 1), (1, 2))

    def matrices(values: list[np.ndarray], rows: int, columns: int) -> list[np.ndarray]:
        fill = lambda M: np.pad(M, ((0, 0), (0, rows - M.shape[1]), (0, columns - M.shape[2])), constant_values=np.nan)  # noqa: E731
        return [fill(value) for value in values]

    each = place[:, 0, 0]  # a run of each system and seed: neither horizon, learning rate nor seen states change its matrices
    rows = {"A": most_states, "B": most_states, "Q": most_states, "R": most_controls}
    columns = {"A": most_states, "B": most_controls, "Q": most_states, "R": most_controls}
    systems = {name: np.full((len(spec.dim), *each.shape, rows[name], columns[name]), np.nan, spec.precision) for name in "ABQR"}
    excess = []
    for i, ((dim, horizon), batch) in enumerate(zip(spec.shapes(), batches, strict=True)):
        problems = problems_of(spec, runs, dim, horizon)
        for name, values in systems.items():
            M = np.stack([getattr(problems[r], name) for r in each.ravel()])
            values[i // len(spec.horizon), ..., : M.shape[1], : M.shape[2]] = M.reshape(*each.shape, *M.shape[1:])
        least = np.empty(len(runs))
        for count in seen_counts(spec):
            members = [r for r, run in enumerate(runs) if run.seen == count]
            least[members] = _least([problems[r] for r in members], seen_set(spec, dim, count))
        excess.append(batch.cost[:, -1] - least)

    data: dict[str, tuple] = {
        "K": ((*SWEPT, "control", "state"), swept(matrices([batch.K for batch in batches], most_controls, most_states))),
        "status": (SWEPT, swept([batch.codes for batch in batches]), STATUS_FLAGS),
        "iterations": (SWEPT, swept([batch.iterations for batch in batches]), {"long_name": "updates made"}),
        "excess_training_cost": (SWEPT, swept(excess), {"long_name": "J(K; S) − J*(S)"}),
    }
    for name, meaning in MEASURED.items():
        data[name] = (*SWEPT, "iteration"), swept([getattr(batch, name) for batch in batches]), {"long_name": meaning}
    for name, values in systems.items():
        data[name] = ("system", "dim", "seed", f"{name}_row", f"{name}_column"), np.moveaxis(values, 0, 1)
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


def _least(problems: list[LQR], x0s: np.ndarray) -> np.ndarray:
    """J*(S) of each problem, or NaN where it is not known in closed form."""
    some = [problems[first : first + 1_000] for first in range(0, len(problems), 1_000)]
    try:
        return np.concatenate([_minimal_costs(jax.tree.map(lambda *leaves: np.stack(leaves), *few), x0s) for few in some])
    except OffspanError:
        return np.full(len(problems), np.nan)


_minimal_costs = jax.jit(jax.vmap(minimal_cost, (0, None)))
