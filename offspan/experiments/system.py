"""Controllers for a system of your own: trained from its seen states, many seeds; `audit`, `map` and `select` take the same spec."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
import xarray as xr

from offspan.controllers import MLP
from offspan.errors import OffspanError
from offspan.experiments.estimate import Estimate, networks
from offspan.experiments.lqr import STATUS_FLAGS
from offspan.experiments.network import layers_of, trajectories_of
from offspan.experiments.parts import share_of_steps
from offspan.experiments.spec import Arrays, Matrix, Number, OnChunk, Positive, Seed, Spec, Task, filled, result_attributes
from offspan.experiments.tables import ControllerTable, NetworkTable, RetrainTable, SystemTable, TrainingTable
from offspan.problems import Problem
from offspan.training import Batch, Status, train_batch

AUDITED = ("region", "success", "angles", "at", "states", "points", "worst", "add", "retrain")  # what only `audit` and `map` ask for
Interval = Annotated[list[Number], pydantic.Field(min_length=2, max_length=2)]


class SystemSpec(Spec):
    """A system, the states that controllers of it are trained from, and for an audit the region where they should work.

    Coordinates are numbered from 0. Seen states that are shorter than the system's are filled up with zeros.
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
    seed: Seed = 0  # of what training and the audit draw
    retrain: RetrainTable | None = None

    @pydantic.field_validator("region", "success")
    @classmethod
    def _of_coordinates(cls, table: dict[str, list[float]] | None) -> dict[str, list[float]] | None:
        for d, (low, high) in (table or {}).items():
            if not re.fullmatch(r"0|[1-9]\d{0,9}", d, re.ASCII):
                raise OffspanError(f"has an entry {d!r}, but coordinates are numbers, from 0")
            if low >= high:
                raise OffspanError(f"has [{low:g}, {high:g}] for coordinate {d}, but must have an interval [low, high]")
        return table

    def check(self) -> None:
        self.system.check_trusted()
        if self.controller != ControllerTable():
            raise OffspanError(f"{self.name} comes with a controller that is trained already; `offspan audit` says how far it reaches.")

    def seen(self, problem: Problem) -> np.ndarray:
        try:
            return filled(self.seen_states, problem.state_dim, self.precision)
        except OffspanError as error:
            raise OffspanError(f"`seen_states`: {error}") from None

    def intervals(self, name: str, problem: Problem) -> dict[int, tuple[float, float]]:
        """`region` or `success`, by coordinate."""
        table = {int(d): (low, high) for d, (low, high) in (getattr(self, name) or {}).items()}
        if wrong := [d for d in table if d >= problem.state_dim]:
            raise OffspanError(f"`{name}` has an entry {str(wrong[0])!r}, but coordinates are 0 to {problem.state_dim - 1}.")
        return table

    def succeeds(self, problem: Problem) -> Callable[..., Any] | None:
        """Whether the last state is where `success` says, which is in the function's docstring; None where it says nothing."""
        intervals, names, angles = self.intervals("success", problem), problem.coordinates, self.angles
        if wrong := [d for d in angles if d not in intervals]:
            raise OffspanError(f"{self.name}: `angles` names coordinate {wrong[0]}, of which `success` says nothing; leave it out.")

        def success(x):
            inside = jnp.asarray(True)
            for d, (low, high) in intervals.items():
                middle = (low + high) / 2
                away = jnp.arctan2(jnp.sin(x[d] - middle), jnp.cos(x[d] - middle)) if d in angles else x[d] - middle
                inside &= jnp.abs(away) <= (high - low) / 2
            return inside

        success.__doc__ = "at the end, " + " and ".join(f"{names[d]} in [{low:g}, {high:g}]" for d, (low, high) in intervals.items())
        return success if intervals else None

    def digest(self) -> str:
        """Of what is trained, wherever the spec lies: what only an audit or a map asks for may change."""
        trained = {name: field.get_default() for name, field in SystemSpec.model_fields.items() if name in AUDITED}
        table = self.system.model_copy(update={"folder": "."})
        return super(SystemSpec, self.model_copy(update={**trained, "system": table})).digest()

    def audit_digest(self) -> str:
        """Of all of it."""
        table = self.system.model_copy(update={"folder": "."})
        return super(SystemSpec, self.model_copy(update={"system": table})).digest()

    def subject(self) -> tuple[str, str]:
        """The controller and the system of an audit, by the names that the spec has for them."""
        asked = self.controller
        trained = self.system.label if self.system.factory else f"trained by the run {self.name}"
        return asked.policy or asked.run or ("the gain of the spec" if asked.gain else trained), self.system.label

    def estimate(self) -> Estimate:
        """Of the networks; the system itself is not made for it."""
        horizon = self.system.horizon or self.system.settings.get("horizon", 1)
        shape: dict[str, Any] = {"width": self.network.width, "depth": self.network.depth, "iterations": self.iterations}
        dims = len(self.seen_states[0]), 1
        known = horizon if isinstance(horizon, int) else 1
        return networks(len(self.seeds), len(self.seen_states), dims=dims, horizon=known, precision=self.precision, **shape)

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
ATTRIBUTES: dict[str, type] = {"system": str, "state_names": str, "control_bounds": str, "horizon": float}


def tasks(spec: SystemSpec) -> list[Task]:
    return [Task("training", 1.0)]


def run_task(spec: SystemSpec, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """All seeds."""
    problem, made = spec.system.make()
    if made is not None:
        raise OffspanError(f"{spec.name} comes with a controller that is trained already; `offspan audit` says how far it reaches.")
    seen = spec.seen(problem)
    starts = [spec.network.first(problem, spec.system, seed) for seed in spec.seeds]
    options = spec.training.options(problem)
    batch = train_batch(
        problem,
        starts,
        seen,
        iterations=spec.iterations,
        key=jax.random.key(spec.seed),
        record_every=max(spec.iterations // 1_000, 1),
        resume=None if resume is None else Batch.from_arrays(resume, starts[0]),
        on_chunk=lambda batch: on_chunk(share_of_steps(batch.done, spec.iterations, options.get("horizons")), batch.to_arrays()),
        **options,
    )
    X, costs = zip(*(trajectories_of(problem, controller, seen) for controller in batch.controllers), strict=True)
    layers = {f"{name}{i}": values for i, layer in enumerate(layers_of(batch)) for name, values in zip("Wb", layer, strict=True)}
    described = {"horizon": problem.horizon, "state_names": problem.coordinates, "control_bounds": problem.control_bounds}
    metadata = {name: np.asarray(json.dumps(value, default=lambda array: np.asarray(array).tolist())) for name, value in described.items()}
    return {**batch.to_arrays(), **layers, "trajectories": np.stack(X), "costs": np.stack(costs), "seen": seen, **metadata}


def to_dataset(spec: SystemSpec, results: Mapping[str, Arrays]) -> xr.Dataset:
    """Of arrays alone: the system is not made again. The seed that is shown has the lowest training cost."""
    found = results["training"]
    diverged = found["codes"] == int(Status.diverged)
    reached = np.where(diverged | ~np.isfinite(found["costs"]).all(axis=1), np.inf, found["costs"].mean(axis=1))
    shown = int(np.argmin(reached))
    data: dict[str, tuple] = {
        "seen_state": (("seen", "state"), found["seen"], {"long_name": "S, one state a row"}),
        "status": ("seed", found["codes"], STATUS_FLAGS),
        "iterations_made": ("seed", found["iterations"], {"long_name": "updates made"}),
        "training_cost": ("seed", reached, {"long_name": "J(π; S) of the result, +∞ where it diverged"}),
        "seen_cost": (("seed", "seen"), found["costs"], {"long_name": "J(π; x) of each seen state x"}),
        "cost": (("seed", "iteration"), found["cost"], {"long_name": "J(π; S) before an update"}),
        "trajectory": (("seen", "time", "state"), found["trajectories"][shown], {"long_name": "x_0..x_H of the shown seed"}),
        "shown_seed": ((), spec.seeds[shown], {"long_name": "of the lowest training cost"}),
    }
    for i in range(spec.network.depth):
        data[f"W{i}"] = ("seed", f"output{i}", f"input{i}"), found[f"W{i}"]
        data[f"b{i}"] = ("seed", f"output{i}"), found[f"b{i}"]
    described = {name: str(found[name]) for name in ("state_names", "control_bounds")}
    numbers = {"horizon": int(str(found["horizon"])), "since": int(found["since"])}
    attributes = {**result_attributes(spec), "system": spec.system.label, **described, **numbers}
    return xr.Dataset(data, coords={"seed": spec.seeds, "iteration": found["recorded"]}, attrs=attributes)


def shown_controller(spec: SystemSpec, result: xr.Dataset) -> Any:
    """The controller of the lowest training cost, from a stored result, within the bounds that it was trained with."""
    shown = result.sel(seed=int(result.shown_seed))
    layers = [(jnp.asarray(shown[f"W{i}"].values), jnp.asarray(shown[f"b{i}"].values)) for i in range(spec.network.depth)]
    try:
        bounds = json.loads(result.attrs["control_bounds"])
    except (ValueError, RecursionError):
        raise OffspanError(f"the result of {spec.name} does not say which bounds its controls have; run it again.") from None
    return spec.network.controller(MLP(layers, spec.network.activation), bounds, spec.system)
