"""Ways of training linear controllers, compared on the same systems: where the gradient comes from, noise, long horizons."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pydantic
import xarray as xr

from offspan.baselines import minimal_cost
from offspan.controllers import Linear
from offspan.errors import OffspanError, check_known
from offspan.experiments.estimate import Estimate, linear, one_after_another
from offspan.experiments.lqr import STATUS_FLAGS
from offspan.experiments.network import clipped
from offspan.experiments.registry import FAMILIES
from offspan.experiments.spec import Arrays, OnChunk, Positive, Rate, Spec, Strict, Task, result_attributes
from offspan.measures import normalized_cost, normalized_optimality
from offspan.problems import LQR, Noisy, Problem
from offspan.rollout import cost
from offspan.states import basis
from offspan.training import Batch, Estimator, Exact, Reinforce, TwoPoint, train_batch, train_lqr_batch

Deviation = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


def _can_be_printed(name: str) -> str:
    """In figures, tables and spreadsheets."""
    if not (name.isprintable() and re.fullmatch(r"\w[^$\\|]*", name)):
        raise OffspanError("must be a text on one line that begins with a letter or digit, without `$`, `\\` and `|`")
    return name


class Way(Strict):
    """One way of training. `directions` are those of two-point, `rollouts` (from each seen state) those of reinforce."""

    name: Annotated[str, pydantic.AfterValidator(_can_be_printed)]
    learning_rate: Rate
    iterations: Positive | None = None  # in place of the spec's
    clip: Rate | None = None
    discounts: Annotated[list[Rate], pydantic.Field(min_length=1)] | None = None
    gradient: Literal["exact", "two-point", "reinforce"] = "exact"
    radius: Rate = 0.1
    directions: Positive = 8
    std: Rate = 0.1
    rollouts: Positive = 8
    control_noise: Deviation = 0.0
    process_noise: Deviation = 0.0

    def estimator(self) -> Estimator:
        made = {"two-point": lambda: TwoPoint(self.radius, self.directions), "reinforce": lambda: Reinforce(self.std, self.rollouts)}
        return made.get(self.gradient, Exact)()

    @property
    def rollouts_from_each(self) -> int:
        """Of an update, from each of its states."""
        return {"exact": 1, "two-point": 2 * self.directions, "reinforce": self.rollouts}[self.gradient]

    def is_noisy(self) -> bool:
        return self.control_noise > 0 or self.process_noise > 0

    def is_plain(self) -> bool:
        """Whether `train_lqr_batch` trains it: exact gradients, or those of an exact expectation, of the whole cost."""
        return self.gradient == "exact" and self.discounts is None


def check_ways(ways: Sequence[Way]) -> None:
    if len({way.name for way in ways}) < len(ways):
        raise OffspanError("`ways` has a name twice; give each way its own")
    for way in ways:
        way.estimator()  # which says what is wrong with it
        if way.discounts is not None and (way.discounts[-1] != 1 or max(way.discounts) > 1):
            raise OffspanError(f"`discounts` of {way.name!r} must be at most 1 and end with 1")


class WaysSpec(Spec):
    """Ways of training, each on every system, horizon and seed, from K = 0 on e_1..e_seen."""

    kind: Literal["ways"]
    systems: list[str] = pydantic.Field(min_length=1)
    dim: Positive
    horizon: list[Positive] = pydantic.Field(min_length=1)
    seen: Positive = 1
    record_every: Positive = 100
    compare_by: Literal["horizon", "rollouts", "noise"]  # what the figures show the measures against
    ways: list[Way] = pydantic.Field(min_length=1)

    @pydantic.model_validator(mode="after")
    def _fits_together(self):
        for system in self.systems:
            check_known("there is no system", system, FAMILIES)
        if self.seen >= self.dim:
            raise OffspanError(f"`seen` is {self.seen}, but must be less than `dim`, {self.dim}, to leave something unseen")
        check_ways(self.ways)
        exact, noisy = ([way for way in self.ways if kept(way)] for kept in (Way.is_plain, Way.is_noisy))
        if self.compare_by == "rollouts" and not exact:
            raise OffspanError("`compare_by` is rollouts, so one of the ways must be exact, to compare with")
        if self.compare_by == "noise" and not (noisy and "identity" in self.systems and all(way.is_plain() for way in self.ways)):
            raise OffspanError("`compare_by` is noise, so that the ways must be exact, one of them with noise, and identity a system")
        if (len(self.ways) > 8 and self.compare_by != "rollouts") or len(self.systems) > 4:
            raise OffspanError("a figure can tell at most 8 ways and 4 systems apart; give fewer")
        return self

    def as_quick(self) -> "Spec":
        """Also with fewer seeds."""
        quick = super().as_quick()
        share = quick.iterations / self.iterations
        fewer = [way.model_copy(update={"iterations": max(int(way.iterations * share), 1)}) if way.iterations else way for way in self.ways]
        return quick.model_copy(update={"seeds": self.seeds[: max(len(self.seeds) // 10, 3)], "ways": fewer})

    def estimate(self) -> Estimate:
        """A sampled gradient has the states of all of its rollouts at once."""
        every = [(way, horizon) for way in self.ways for horizon in self.horizon]
        runs = len(self.systems) * len(self.seeds)

        def of_way(way: Way, horizon: int) -> Estimate:
            rollouts = way.rollouts_from_each
            exact = linear({self.seen: runs}, self.dim, self.dim, horizon, way.iterations or self.iterations, self.record_every)
            beside = 0.0 if way.is_plain() else 24.0 * runs * self.seen * rollouts * (horizon + 1) * self.dim
            return exact._replace(memory=exact.memory + beside, operations=exact.operations * rollouts)

        records = -(-self.iterations // self.record_every) + 1
        return one_after_another((of_way(*one) for one in every), beside=8.0 * len(every) * runs * (5 * records + 2 * self.dim**2))

    def content(self) -> str:
        return f"{', '.join(self.systems)}; {len(self.ways)} ways of training"

    def runs(self) -> list[tuple[str, int]]:
        """(system, seed) of each run of a way and a horizon."""
        return [(system, seed) for system in self.systems for seed in self.seeds]


SPEC = WaysSpec
RUN = ("way", "horizon", "system", "seed")
MEASURED = {"normalized_optimality": "E_opt(K) / E_opt(K_no-ext)", "normalized_cost": "E_cost(K) / E_cost(K_no-ext)"}
SETTINGS = ("gradient", "rollouts_an_update", "noise", "learning_rate", "iterations_made")
VARIABLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("status", "cost", "least_cost", *MEASURED), RUN),
    **dict.fromkeys((f"{name}_curve" for name in MEASURED), (*RUN, "iteration")),
    **dict.fromkeys(SETTINGS, ("way",)),
    **{name: (name,) for name in (*RUN, "iteration")},
}
ATTRIBUTES: dict[str, type] = {"dim": float, "seen": float, "compare_by": str}


def tasks(spec: WaysSpec) -> list[Task]:
    """One for each way and horizon."""
    return [Task(_task_name(w, horizon), _weight(way, horizon)) for w, way in enumerate(spec.ways) for horizon in spec.horizon]


def _task_name(way: int, horizon: int) -> str:
    return f"way-{way}-horizon-{horizon}"


def _weight(way: Way, horizon: int) -> float:
    each = {"exact": 1 if way.is_plain() else 10, "two-point": 20 + 2 * way.directions, "reinforce": 20 + way.rollouts}
    return float(horizon * each[way.gradient])


def run_task(spec: WaysSpec, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """All systems and seeds of one way and horizon, as a batch."""
    way, horizon = next((way, horizon) for w, way in enumerate(spec.ways) for horizon in spec.horizon if _task_name(w, horizon) == name)
    problems = [_noisy(way, problem) for problem in _problems(spec, horizon)]
    seen, zero = np.asarray(basis(spec.dim, spec.seen), spec.precision), Linear(jnp.zeros((spec.dim, spec.dim), spec.precision))
    iterations = way.iterations or spec.iterations
    options: dict[str, Any] = {
        "iterations": iterations,
        "record_every": spec.record_every,
        "resume": None if resume is None else Batch.from_arrays(resume, zero),
        "on_chunk": lambda batch: on_chunk(batch.done / iterations, batch.to_arrays()),
    }
    if way.is_plain():
        return train_lqr_batch(problems, [seen] * len(problems), learning_rate=way.learning_rate, clip=way.clip, **options).to_arrays()
    batch = train_batch(
        problems,
        [zero] * len(problems),
        seen,
        optimizer=clipped(optax.sgd(way.learning_rate), way.clip),
        gradient=way.estimator(),
        discounts=way.discounts,
        key=jax.random.key(0),
        **options,
    )
    return batch.to_arrays()


def _problems(spec: WaysSpec, horizon: int) -> list[LQR]:
    made = [FAMILIES[system].make(seed, spec.dim, horizon) for system, seed in spec.runs()]
    return [jax.tree.map(lambda M: M.astype(spec.precision), problem) for problem in made]


def _noisy(way: Way, problem: LQR) -> Problem:
    return Noisy(problem, control=way.control_noise, process=way.process_noise) if way.is_noisy() else problem


def to_dataset(spec: WaysSpec, results: Mapping[str, Arrays]) -> xr.Dataset:
    """Costs and measures are those without noise, of the controllers at the end; curves are there where they were recorded."""
    shape = len(spec.ways), len(spec.horizon), len(spec.systems), len(spec.seeds)
    zero, seen = Linear(np.zeros((spec.dim, spec.dim))), np.asarray(basis(spec.dim, spec.seen))
    batches = [[Batch.from_arrays(results[_task_name(w, H)], zero) for H in spec.horizon] for w in range(len(spec.ways))]
    recorded = np.unique(np.concatenate([batch.recorded for of_way in batches for batch in of_way]))
    data: dict[str, np.ndarray] = {name: np.full(shape, np.nan) for name in ("cost", "least_cost", *MEASURED)}
    data |= {f"{name}_curve": np.full((*shape, len(recorded)), np.nan, np.float32) for name in MEASURED}
    for h, horizon in enumerate(spec.horizon):
        problems = _problems(spec, horizon)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
        data["least_cost"][:, h] = np.asarray(_least(stacked, seen)).reshape(shape[2:])
        for w, of_way in enumerate(batches):
            J, *measures = _evaluate(stacked, jnp.asarray(of_way[h].K), seen)
            for name, value in zip(("cost", *MEASURED), (J, *measures), strict=True):
                data[name][w, h] = np.asarray(value).reshape(shape[2:])
            for name, curve in of_way[h].measures.items():
                places = np.searchsorted(recorded, of_way[h].recorded)
                data[f"{name}_curve"][w, h, ..., places] = np.moveaxis(curve.reshape(*shape[2:], -1), -1, 0)
    long_names = {"cost": "J(K; S)", "least_cost": "J*(S)", **MEASURED, **{f"{name}_curve": said for name, said in MEASURED.items()}}
    codes = np.stack([[batch.codes.reshape(shape[2:]) for batch in of_way] for of_way in batches])
    variables: dict[str, tuple] = {"status": (RUN, codes, STATUS_FLAGS)}
    for name, values in data.items():
        variables[name] = (*RUN, "iteration") if name.endswith("_curve") else RUN, values, {"long_name": long_names[name]}
    rollouts = {"long_name": "rollouts of each update, over all seen states"}
    variables |= {
        "gradient": ("way", [way.gradient for way in spec.ways]),
        "rollouts_an_update": ("way", [_rollouts(spec, way) for way in spec.ways], rollouts),
        "noise": ("way", [float(np.hypot(way.control_noise, way.process_noise)) for way in spec.ways], {"long_name": "ς"}),
        "learning_rate": ("way", [way.learning_rate for way in spec.ways], {"long_name": "η"}),
        "iterations_made": ("way", [way.iterations or spec.iterations for way in spec.ways]),
    }
    coords = {"way": [way.name for way in spec.ways], "horizon": spec.horizon, "system": spec.systems, "seed": spec.seeds}
    settings = {name: getattr(spec, name) for name in ATTRIBUTES}
    return xr.Dataset(variables, coords=coords | {"iteration": recorded}, attrs={**result_attributes(spec), **settings})


def _rollouts(spec: WaysSpec, way: Way) -> int:
    """Without the one more that sampled gradients make from each state for the recorded cost."""
    return spec.seen * way.rollouts_from_each


@jax.jit
def _least(problems, seen):
    return jax.vmap(lambda problem: minimal_cost(problem, seen))(problems)


@jax.jit
def _evaluate(problems, K, seen):
    def of_one(problem, K):
        return cost(problem, Linear(K), seen), normalized_optimality(problem, K, seen), normalized_cost(problem, K, seen)

    return jax.vmap(of_one)(problems, K)
