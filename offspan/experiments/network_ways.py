"""Ways of training networks, compared on the same states: noise, sampled gradients, and horizons well past the paper's."""

from collections.abc import Mapping
from typing import Annotated, Literal

import jax
import numpy as np
import optax
import pydantic
import xarray as xr

from offspan.baselines import adversarial_objective
from offspan.errors import OffspanError
from offspan.experiments.estimate import Estimate, one_after_another
from offspan.experiments.lqr import STATUS_FLAGS
from offspan.experiments.network import OPTIMIZERS, Networks, check_states, clipped
from offspan.experiments.parts import share_of_steps
from offspan.experiments.registry import system
from offspan.experiments.spec import Arrays, Matrix, OnChunk, Positive, Rate, Seed, Spec, Task, filled, result_attributes
from offspan.experiments.ways import Way, check_ways
from offspan.problems import Noisy, Problem
from offspan.selection.pilots import costs_from
from offspan.training import Batch, Status, train_batch


class NetworkWay(Way):
    """Also the optimiser, and `horizons` to go through first: those below the problem's, each with as many iterations as the last."""

    optimizer: Literal["gradient-descent", "adam"] = "adam"
    horizons: Annotated[list[Positive], pydantic.Field(min_length=1)] | None = None

    def transformation(self) -> optax.GradientTransformation:
        return clipped(OPTIMIZERS[self.optimizer](self.learning_rate), self.clip)

    def stages(self, horizon: int) -> list[int] | None:
        return None if self.horizons is None else [*(one for one in self.horizons if one < horizon), horizon]


class NonExtrapolating(NetworkWay):
    """J(S) + coefficient · J(U towards other targets): one target for each unseen state, or one for all."""

    coefficient: Rate = 0.1
    targets: Matrix


class NetworkWaysSpec(Networks):
    """Ways of training, each with every horizon and seed; and for each horizon, what the cost on U is normalised by: the lowest cost of
    runs trained on U, and that of a controller that was trained not to extrapolate."""

    kind: Literal["network_ways"]
    problem: str
    horizon: list[Positive] = pydantic.Field(min_length=1)
    seen_states: Matrix
    unseen_states: Matrix
    compare_by: Literal["horizon", "noise"]  # what the figures show the measure against
    ways: list[NetworkWay] = pydantic.Field(min_length=1, max_length=8)
    baseline_seeds: list[Seed] = pydantic.Field([0, 1, 2], min_length=1)
    minimal_cost: NetworkWay
    non_extrapolating: NonExtrapolating

    @pydantic.model_validator(mode="after")
    def _fits_together(self):
        every = [*self.ways, self.minimal_cost, self.non_extrapolating]
        check_ways(every)
        if both := [way.name for way in every if way.horizons is not None and way.discounts is not None]:
            raise OffspanError(
                f"the way {both[0]!r} has `horizons` and `discounts`, whose stages differ with the horizon; give one of them"
            )
        if "horizon" in self.settings:
            raise OffspanError("`settings.horizon` is given, but `horizon` lists the horizons")
        check_states(self, self.make_problem(self.horizon[0]).state_dim)
        if self.non_extrapolating.is_noisy() or self.non_extrapolating.gradient != "exact":
            raise OffspanError("`non_extrapolating` has an objective of its own, so that its gradient must be exact, without noise")
        return self

    def as_quick(self) -> Spec:
        """Also with fewer seeds, and at the first horizon."""
        quick = super().as_quick()
        once = {"iterations": None}
        update = {
            "seeds": self.seeds[:3],
            "baseline_seeds": self.baseline_seeds[:1],
            "horizon": self.horizon[:1],
            "ways": [way.model_copy(update=once) for way in self.ways],
            "minimal_cost": self.minimal_cost.model_copy(update=once),
            "non_extrapolating": self.non_extrapolating.model_copy(update=once),
        }
        return quick.model_copy(update=update)

    def make_problem(self, horizon: int) -> Problem:
        return system(self.problem, {**self.settings, "horizon": horizon})

    def states(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seen states, unseen states, and for each of these the target of the controller that does not extrapolate."""
        n = self.make_problem(self.horizon[0]).state_dim
        seen, unseen, targets = (
            filled(rows, n, self.precision) for rows in (self.seen_states, self.unseen_states, self.non_extrapolating.targets)
        )
        return seen, unseen, np.broadcast_to(targets, unseen.shape)

    def trainings(self) -> dict[str, tuple[NetworkWay, list[int]]]:
        """Everything that is trained at each horizon, with its seeds."""
        baselines = {"minimal-cost": self.minimal_cost, "non-extrapolating": self.non_extrapolating}
        return {f"way-{w}": (way, self.seeds) for w, way in enumerate(self.ways)} | {
            name: (way, self.baseline_seeds) for name, way in baselines.items()
        }

    def estimate(self) -> Estimate:
        """A sampled gradient has the states of all of its rollouts at once."""

        def of_way(way: NetworkWay, seeds: list[int], horizon: int) -> Estimate:
            states = max(len(self.seen_states), len(self.unseen_states)) + len(self.unseen_states) * isinstance(way, NonExtrapolating)
            return self.estimate_of(self.make_problem(horizon), len(seeds), states * way.rollouts_from_each)

        return one_after_another(of_way(*one, horizon) for one in self.trainings().values() for horizon in self.horizon)

    def content(self) -> str:
        return f"{self.problem}, {len(self.ways)} ways of training, H = {', '.join(map(str, self.horizon))}"


SPEC = NetworkWaysSpec
RUN = ("way", "horizon", "seed")
VARIABLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("status", "cost", "unseen_cost", "normalized_cost"), RUN),
    **dict.fromkeys(("least_cost", "baseline_cost"), ("horizon",)),
    **dict.fromkeys(("noise", "learning_rate", "iterations_made"), ("way",)),
    **{name: (name,) for name in (*RUN, "baseline_seed")},
}
ATTRIBUTES: dict[str, type] = {"problem": str, "compare_by": str}


def tasks(spec: NetworkWaysSpec) -> list[Task]:
    """One for each training and horizon."""
    return [
        Task(f"{name}-horizon-{H}", _weight(spec, way, seeds, H)) for H in spec.horizon for name, (way, seeds) in spec.trainings().items()
    ]


def _weight(spec: NetworkWaysSpec, way: NetworkWay, seeds: list[int], horizon: int) -> float:
    """By the time steps of an update; a backward pass is two forward ones, and a mean stage is shorter than the last."""
    each = {"exact": 3, "two-point": 2 * way.directions + 1, "reinforce": way.rollouts + 1}[way.gradient]
    return float((way.iterations or spec.iterations) * each * np.mean(way.stages(horizon) or horizon) * len(seeds))


def run_task(spec: NetworkWaysSpec, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """All seeds of one training at one horizon."""
    training, _, horizon = name.rpartition("-horizon-")
    way, seeds = spec.trainings()[training]
    problem, (seen, unseen, targets) = spec.make_problem(int(horizon)), spec.states()
    starts = spec.first_controllers(problem, seeds)
    iterations, stages = way.iterations or spec.iterations, way.stages(int(horizon))
    adversarial = isinstance(way, NonExtrapolating)
    batch = train_batch(
        Noisy(problem, control=way.control_noise, process=way.process_noise) if way.is_noisy() else problem,
        starts,
        unseen if training == "minimal-cost" else seen,
        optimizer=way.transformation(),
        iterations=iterations,
        loss=adversarial_objective(unseen, targets, coefficient=way.coefficient) if adversarial else None,
        gradient=None if adversarial else way.estimator(),
        key=jax.random.key(0),
        horizons=stages,
        discounts=way.discounts,
        record_every=spec.evaluate_every,
        resume=None if resume is None else Batch.from_arrays(resume, starts[0]),
        on_chunk=lambda batch: on_chunk(share_of_steps(batch.done, iterations, stages), batch.to_arrays()),
    )
    return batch.to_arrays()


def to_dataset(spec: NetworkWaysSpec, results: Mapping[str, Arrays]) -> xr.Dataset:
    """All costs are those without noise, over the whole horizon, of the controllers at the end; ∞ where a run diverged."""
    seen, unseen, _ = spec.states()
    costs, codes = {}, {}
    for H in spec.horizon:
        problem = spec.make_problem(H)
        for name in spec.trainings():
            batch = Batch.from_arrays(results[f"{name}-horizon-{H}"], spec.first_controller(problem, 0))
            found = [costs_from(problem, batch.controllers, jax.numpy.asarray(x0s)).mean(axis=1) for x0s in (seen, unseen)]
            costs[name, H] = np.where(batch.codes == Status.diverged, np.inf, np.stack(found))  # (2, seeds)
            codes[name, H] = batch.codes
    of_ways = np.stack([[costs[f"way-{w}", H] for H in spec.horizon] for w in range(len(spec.ways))])  # (way, horizon, 2, seed)
    least = np.array([costs["minimal-cost", H][1].min() for H in spec.horizon])
    # Of the controllers trained not to extrapolate, the one that cost least on S  [R24, app:experiments:details:nn:pend].
    baseline = np.array([pair[1][np.argmin(pair[0])] for pair in (costs["non-extrapolating", H] for H in spec.horizon)])
    with np.errstate(invalid="ignore", divide="ignore"):
        measure = (of_ways[:, :, 1] - least[None, :, None]) / np.where(baseline > least, baseline - least, np.nan)[None, :, None]
    status = np.stack([[codes[f"way-{w}", H] for H in spec.horizon] for w in range(len(spec.ways))])
    variables: dict[str, tuple] = {
        "status": (RUN, status, STATUS_FLAGS),
        "cost": (RUN, of_ways[:, :, 0], {"long_name": "J(π; S)"}),
        "unseen_cost": (RUN, of_ways[:, :, 1], {"long_name": "J(π; U)"}),
        "normalized_cost": (RUN, measure, {"long_name": "(J(π; U) − J̃*(U)) / (J(π_no-ext; U) − J̃*(U))"}),
        "least_cost": ("horizon", least, {"long_name": "J̃*(U): the lowest cost of the runs trained on U"}),
        "baseline_cost": ("horizon", baseline, {"long_name": "J(π_no-ext; U)"}),
        "noise": ("way", [float(np.hypot(way.control_noise, way.process_noise)) for way in spec.ways], {"long_name": "ς"}),
        "learning_rate": ("way", [way.learning_rate for way in spec.ways]),
        "iterations_made": ("way", [way.iterations or spec.iterations for way in spec.ways]),
    }
    coords = {"way": [way.name for way in spec.ways], "horizon": spec.horizon, "seed": spec.seeds, "baseline_seed": spec.baseline_seeds}
    return xr.Dataset(variables, coords=coords, attrs={**result_attributes(spec), **{name: getattr(spec, name) for name in ATTRIBUTES}})
