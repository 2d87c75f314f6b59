"""Controllers for a system of your own: trained from its seen states, many seeds; `audit`, `map` and `select` take the same spec."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
import xarray as xr

from offspan.controllers import MLP
from offspan.errors import OffspanError
from offspan.experiments.lqr import STATUS_FLAGS
from offspan.experiments.network import layers_of, trajectories_of
from offspan.experiments.spec import Arrays, Matrix, Number, OnChunk, Positive, Seed, Spec, Task, filled, result_attributes
from offspan.experiments.tables import ControllerTable, NetworkTable, RetrainTable, SystemTable, TrainingTable
from offspan.problems import Problem
from offspan.training import Batch, Status, train_batch

Interval = Annotated[list[Number], pydantic.Field(min_length=2, max_length=2)]


class SystemSpec(Spec):
    """A system, the states that controllers of it are trained from, and for an audit the region where they should work.

    Coordinates are numbered from 0. States that are shorter than the system's are filled up with zeros.
    """

    kind: Literal["system"]
    system: SystemTable
    seen_states: Matrix
    iterations: Positive = 1_000
    network: NetworkTable = NetworkTable()
    training: TrainingTable = TrainingTable()
    controller: ControllerTable = ControllerTable()  # to be audited; without it, the one that was trained
    region: dict[str, Interval] | None = None
    success: dict[str, Interval] | None = None  # where the last state must be
    angles: list[int] = pydantic.Field([])  # coordinates of `success` for which 2π more or less is the same
    at: list[Number] | None = None
    states: Positive = 1_000
    points: Positive = 41
    worst: Positive = 5
    add: Positive = 2
    seed: Seed = 0  # of the audit
    retrain: RetrainTable | None = None

    def seen(self, problem: Problem) -> np.ndarray:
        if len(self.seen_states[0]) > (n := problem.state_dim):
            raise OffspanError(f"`seen_states` has states of length {len(self.seen_states[0])}, but {self.system.label} has {n} numbers")
        return filled(self.seen_states, n, self.precision)

    def digest(self) -> str:
        """Wherever the spec lies."""
        return super(SystemSpec, self.model_copy(update={"system": self.system.model_copy(update={"folder": "."})})).digest()

    def content(self) -> str:
        return f"{self.system.label}, {len(self.seen_states)} seen states"


SPEC = SystemSpec
VARIABLES: dict[str, tuple[str, ...]] = {
    "seen_state": ("seen", "state"),
    **dict.fromkeys(("status", "iterations_made", "training_cost"), ("seed",)),
    "seen_cost": ("seed", "seen"),
    "cost": ("seed", "iteration"),
    "trajectory": ("seen", "time", "state"),
    "shown_seed": (),
    **{name: (name,) for name in ("seed", "iteration")},
}
ATTRIBUTES: dict[str, type] = {"system": str, "state_names": str, "horizon": float}


def tasks(spec: SystemSpec) -> list[Task]:
    return [Task("training", 1.0)]


def run_task(spec: SystemSpec, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """All seeds."""
    problem, made = spec.system.make()
    if made is not None or spec.controller != ControllerTable():
        raise OffspanError(f"{spec.name} comes with a controller that is trained already; `offspan audit` says how far it reaches.")
    seen = spec.seen(problem)
    starts = [spec.network.first(problem, spec.system, seed) for seed in spec.seeds]
    batch = train_batch(
        problem,
        starts,
        seen,
        iterations=spec.iterations,
        key=jax.random.key(spec.seed),
        record_every=max(spec.iterations // 1_000, 1),
        resume=None if resume is None else Batch.from_arrays(resume, starts[0]),
        on_chunk=lambda batch: on_chunk(batch.done / spec.iterations, batch.to_arrays()),
        **spec.training.options(problem),
    )
    return batch.to_arrays()


def to_dataset(spec: SystemSpec, results: Mapping[str, Arrays]) -> xr.Dataset:
    """The seed that is shown has the lowest training cost."""
    problem, _ = spec.system.make()
    seen = spec.seen(problem)
    batch = Batch.from_arrays(results["training"], spec.network.first(problem, spec.system, 0))
    X, costs = zip(*(trajectories_of(problem, controller, seen) for controller in batch.controllers), strict=True)
    reached = np.where(batch.codes == int(Status.diverged), np.inf, np.stack(costs).mean(axis=1))
    shown = int(np.argmin(np.where(np.isfinite(reached), reached, np.inf)))
    data: dict[str, tuple] = {
        "seen_state": (("seen", "state"), seen, {"long_name": "S, one state a row"}),
        "status": ("seed", batch.codes, STATUS_FLAGS),
        "iterations_made": ("seed", batch.iterations, {"long_name": "updates made"}),
        "training_cost": ("seed", reached, {"long_name": "J(π; S) of the result, +∞ where it diverged"}),
        "seen_cost": (("seed", "seen"), np.stack(costs), {"long_name": "J(π; x) of each seen state x"}),
        "cost": (("seed", "iteration"), batch.cost, {"long_name": "J(π; S) before an update"}),
        "trajectory": (("seen", "time", "state"), X[shown], {"long_name": "x_0..x_H of the seed that is shown"}),
        "shown_seed": ((), spec.seeds[shown], {"long_name": "of the lowest training cost"}),
    }
    for i, (W, b) in enumerate(layers_of(batch)):
        data |= {f"W{i}": (("seed", f"output{i}", f"input{i}"), W), f"b{i}": (("seed", f"output{i}"), b)}
    described = {"system": spec.system.label, "state_names": json.dumps(problem.coordinates), "horizon": problem.horizon}
    attributes = {**result_attributes(spec), **described, "since": batch.since}
    return xr.Dataset(data, coords={"seed": spec.seeds, "iteration": batch.recorded}, attrs=attributes)


def shown_controller(spec: SystemSpec, result: xr.Dataset, problem: Problem) -> Any:
    """The controller of the lowest training cost, from a stored result."""
    shown = result.sel(seed=int(result.shown_seed))
    layers = [(jnp.asarray(shown[f"W{i}"].values), jnp.asarray(shown[f"b{i}"].values)) for i in range(spec.network.depth)]
    return spec.network.controller(MLP(layers, spec.network.activation), problem, spec.system)
