"""Network controllers for a non-linear problem: three objectives, many seeds, and what each controller does with seen and unseen states."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pydantic
import xarray as xr

from offspan.baselines import adversarial_objective
from offspan.controllers import MLP, Bounded, unstack_weights
from offspan.errors import OffspanError
from offspan.experiments.estimate import Estimate, networks, one_after_another
from offspan.experiments.lqr import STATUS_FLAGS
from offspan.experiments.objectives import WeightedCosts, aimed
from offspan.experiments.parts import joined, part_names, seed_groups, select_runs
from offspan.experiments.registry import SYSTEMS, preset_of, system
from offspan.experiments.spec import (
    Arrays,
    Matrix,
    OnChunk,
    Positive,
    Rate,
    Seed,
    Spec,
    Strict,
    Task,
    filled,
    result_attributes,
)
from offspan.host import own_errors
from offspan.problems import Problem
from offspan.rollout import rollout
from offspan.training import Batch, NoImprovement, Status, diagnose, train_batch

OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {"gradient-descent": optax.sgd, "adam": optax.adam}


def clipped(optimizer: optax.GradientTransformation, norm: float | None) -> optax.GradientTransformation:
    """Clips the norm of the gradient, if one is given; the state of the optimiser has the same structure either way."""
    return optax.chain(optax.identity() if norm is None else optax.clip_by_global_norm(norm), optimizer)


@functools.cache
def _transformation(optimizer: str, learning_rate: float) -> optax.GradientTransformation:
    return OPTIMIZERS[optimizer](learning_rate)


class Objective(Strict):
    """How one of the three objectives of a network experiment is descended."""

    optimizer: Literal["gradient-descent", "adam"]
    learning_rate: Rate

    def transformation(self) -> optax.GradientTransformation:
        """The same value for the same words, as programs are compiled for each."""
        return _transformation(self.optimizer, self.learning_rate)


class Adversarial(Objective):
    """J(S) + coefficient · J(U towards other targets): one target for each unseen state, or one for all."""

    coefficient: Rate = 0.1
    targets: Matrix


class Networks(Spec):
    """What specs with networks share: their size, and the rule that stops their training  [R24, app:experiments:details:nn:pend]."""

    settings: dict[str, Any] = pydantic.Field({})
    width: Positive = 50
    depth: Positive = 4
    evaluate_every: Positive = pydantic.Field(100, validation_alias=pydantic.AliasChoices("evaluate_every", "look_every"))
    patience: Positive = 50
    gain: Rate = 1e-5

    def first_controller(self, problem: Problem, seed: int) -> MLP | Bounded:
        """Where a seed begins, whatever the objective."""
        return bounded(
            MLP.init(jax.random.key(seed), problem.state_dim, problem.control_dim, width=self.width, depth=self.depth),
            problem.control_bounds,
        )

    def first_controllers(self, problem: Problem, seeds: list[int]) -> list[MLP | Bounded]:
        """`first_controller` of each seed, made at once, which takes the time of a few; the bits are the same."""
        dims = problem.state_dim, problem.control_dim
        every = jax.vmap(lambda seed: MLP.init(jax.random.key(seed), *dims, width=self.width, depth=self.depth))(
            np.asarray(seeds, np.uint32)
        )
        return [bounded(one, problem.control_bounds) for one in unstack_weights(*eqx.partition(every, eqx.is_inexact_array))]

    def estimate_of(self, problem: Problem, runs: int, states: int) -> Estimate:
        """Of networks for the problem, all trained at once."""
        shape = {"dims": (problem.state_dim, problem.control_dim), "horizon": problem.horizon, "width": self.width, "depth": self.depth}
        return networks(runs, states, **shape, iterations=self.iterations, precision=self.precision)

    def stopping_rule(self) -> NoImprovement:
        return NoImprovement(every=self.evaluate_every, patience=self.patience, gain=self.gain)


def bounded(network: MLP, bounds: Any) -> MLP | Bounded:
    """Within the bounds of a problem's controls, if it has any."""
    return network if bounds is None else Bounded(network, *bounds)


def check_states(spec: Any, n: int) -> None:
    """Whether the states and targets of a spec fit a problem of n numbers."""
    for name in ("seen_states", "unseen_states"):
        if (length := len(getattr(spec, name)[0])) > n:
            raise OffspanError(f"`{name}` has states of length {length}, but a state of the {spec.problem} has {n} coordinates")
    targets = spec.non_extrapolating.targets
    if len(targets[0]) > n or len(targets) not in (1, len(spec.unseen_states)):
        raise OffspanError(f"`non_extrapolating.targets` must be one state of at most {n} numbers, or one for each unseen state")


class NetworkSpec(Networks):
    """Network controllers for a non-linear problem: policy gradient on S, a controller that was trained not to extrapolate, and J̃*(U).

    States and targets that are shorter than the problem's states are filled up with zeros.
    """

    splits_by_seeds: ClassVar[bool] = True
    kind: Literal["network"]
    problem: str
    seen_states: Matrix
    unseen_states: Matrix
    baseline_seeds: list[Seed] = pydantic.Field([0, 1, 2, 3, 4], min_length=1)  # of the two objectives that are compared with
    policy_gradient: Objective
    non_extrapolating: Adversarial
    minimal_cost: Objective
    together: bool = False  # the three objectives as one program, which takes a third of the time on a GPU, and more on a CPU

    @pydantic.model_validator(mode="after")
    def _fits_together(self):
        if self.together and self.seeds_per_task is not None:
            raise OffspanError("`together` makes one task of everything, and `seeds_per_task` makes many; leave one of them out")
        check_states(self, self.make_problem().state_dim)
        return self

    def as_quick(self) -> "NetworkSpec":
        """Two seeds in place of all leave time for twice the iterations; seeds that were asked for, apart from the baselines', are kept."""
        quick: Any = super().as_quick()
        if self.seeds != self.baseline_seeds or len(self.seeds) <= QUICK_SEEDS:
            return quick
        few = self.seeds[:QUICK_SEEDS]
        return quick.model_copy(update={"seeds": few, "baseline_seeds": few, "iterations": 2 * quick.iterations})

    def make_problem(self) -> Problem:
        return system(self.problem, self.settings)

    def estimate(self) -> Estimate:
        problem, seen, unseen = self.make_problem(), len(self.seen_states), len(self.unseen_states)
        at_once = [min(self.seeds_per_task or len(seeds), len(seeds)) for seeds in (self.seeds, self.baseline_seeds, self.baseline_seeds)]
        parts = [self.estimate_of(problem, *one) for one in zip(at_once, (seen, seen + unseen, unseen), strict=True)]
        together = sum(part.memory for part in parts) if self.together else 0.0
        whole = one_after_another([self.estimate_of(problem, len(self.seeds), seen), *parts[1:]])
        return whole._replace(memory=max(together, *(part.memory for part in parts)))

    def content(self) -> str:
        return f"{self.problem}, {len(self.seen_states)} seen and {len(self.unseen_states)} unseen states"


QUICK_SEEDS = 2
NEAR = 0.25  # from the target, in the unit of a position
SPEC = NetworkSpec
OBJECTIVES = ("policy_gradient", "non_extrapolating", "minimal_cost")
TOGETHER = "objectives"  # the task that trains all of them
ATTRIBUTES = {"problem": str, "horizon": float, "diagnoses": str}
VARIABLES: dict[str, tuple[str, ...]] = {
    "seen_state": ("seen", "state"),
    "unseen_state": ("unseen", "state"),
    "target": ("state",),
    "normalized_cost": ("seed",),
    **dict.fromkeys(("least_cost", "baseline_cost", "shown_seed", "shown_baseline_seed", "least_seed"), ()),
    **{name: (name,) for name in ("seed", "baseline_seed", "iteration")},
}
for _objective in OBJECTIVES:
    _seed = "seed" if _objective == "policy_gradient" else "baseline_seed"
    VARIABLES |= {f"{_objective}_{name}": (_seed,) for name in ("status", "iterations", "training_cost")}
    VARIABLES |= {f"{_objective}_{group}_cost": (_seed, group) for group in ("seen", "unseen")}
    VARIABLES |= {f"{_objective}_curve": (_seed, "iteration")}
for _objective in OBJECTIVES[:2]:
    VARIABLES |= {f"{_objective}_{group}_trajectory": (group, "time", "state") for group in ("seen", "unseen")}


def tasks(spec: NetworkSpec) -> list[Task]:
    """The three objectives, or some of their seeds, by the states that an iteration rolls out; or all of it as one program."""
    if spec.together:
        return [Task(TOGETHER, 1.0)]
    seen, unseen = len(spec.seen_states), len(spec.unseen_states)
    return [
        Task(name, float(states * len(seeds)))
        for objective, states in zip(OBJECTIVES, (seen, seen + unseen, unseen), strict=True)
        for name, seeds in _parts(spec, objective).items()
    ]


def _parts(spec: NetworkSpec, objective: str) -> dict[str, list[int]]:
    """The seeds of each task of an objective."""
    groups = seed_groups(spec, seeds_of(spec, objective))
    return dict(zip(part_names(objective, spec, len(groups)), groups, strict=True))


def run_task(spec: NetworkSpec, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """All seeds of one objective, or some of them, or those of all objectives."""
    if name == TOGETHER:
        return _run_together(spec, resume, on_chunk)
    objective = next(objective for objective in OBJECTIVES if name in _parts(spec, objective))
    problem, seen, unseen, _ = make(spec)
    starts = spec.first_controllers(problem, _parts(spec, objective)[name])
    batch = train_batch(
        problem,
        starts,
        unseen if objective == "minimal_cost" else seen,
        optimizer=getattr(spec, objective).transformation(),
        iterations=spec.iterations,
        loss=_loss(spec, objective),
        stop=spec.stopping_rule(),
        record_every=spec.evaluate_every,
        resume=None if resume is None else Batch.from_arrays(resume, starts[0]),
        on_chunk=lambda batch: on_chunk(batch.done / spec.iterations, batch.to_arrays()),
    )
    return batch.to_arrays()


def _run_together(spec: NetworkSpec, resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """All seeds of all objectives, one objective after another."""
    problem, seen, unseen, targets = make(spec)
    each = aimed(problem, seen, unseen, targets, spec.non_extrapolating.coefficient)
    every = [(objective, seed) for objective in OBJECTIVES for seed in seeds_of(spec, objective)]
    starts = spec.first_controllers(problem, [seed for _, seed in every])
    batch = train_batch(
        [each[objective][0] for objective, _ in every],
        starts,
        np.stack([each[objective][1] for objective, _ in every]),
        optimizer=[getattr(spec, objective).transformation() for objective, _ in every],
        iterations=spec.iterations,
        gradient=WeightedCosts(),
        stop=spec.stopping_rule(),
        record_every=spec.evaluate_every,
        resume=None if resume is None else Batch.from_arrays(resume, starts[0]),
        on_chunk=lambda batch: on_chunk(batch.done / spec.iterations, batch.to_arrays()),
    )
    return batch.to_arrays()


def _trained(spec: NetworkSpec, results: Mapping[str, Arrays]) -> dict[str, Arrays]:
    """The batch of each objective."""
    if not spec.together:
        return {objective: joined([results[name] for name in _parts(spec, objective)]) for objective in OBJECTIVES}
    counts = [len(seeds_of(spec, objective)) for objective in OBJECTIVES]
    ends = np.cumsum(counts).tolist()
    runs = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
    return {objective: select_runs(results[TOGETHER], some) for objective, some in zip(OBJECTIVES, runs, strict=True)}


def make(spec: NetworkSpec) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """The problem, the seen states, the unseen states, and for each of these the target of the adversarial objective."""
    problem = spec.make_problem()
    rows = spec.seen_states, spec.unseen_states, spec.non_extrapolating.targets
    seen, unseen, targets = (filled(some, problem.state_dim, spec.precision) for some in rows)
    return problem, seen, unseen, np.broadcast_to(targets, unseen.shape)


def _loss(spec: NetworkSpec, objective: str) -> Callable[..., Any] | None:
    _, _, unseen, targets = make(spec)
    adversarial = spec.non_extrapolating
    return adversarial_objective(unseen, targets, coefficient=adversarial.coefficient) if objective == "non_extrapolating" else None


def seeds_of(spec: NetworkSpec, objective: str) -> list[int]:
    return spec.seeds if objective == "policy_gradient" else spec.baseline_seeds


def to_dataset(spec: NetworkSpec, results: Mapping[str, Arrays]) -> xr.Dataset:
    """Variables of each objective begin with its name. Trajectories are those of the runs that the paper's figures show."""
    problem, seen, unseen, _ = make(spec)
    first = spec.first_controller(problem, 0)
    batches = {objective: Batch.from_arrays(arrays, first) for objective, arrays in _trained(spec, results).items()}
    data: dict[str, tuple] = {
        "seen_state": (("seen", "state"), seen, {"long_name": "S, one state a row"}),
        "unseen_state": (("unseen", "state"), unseen, {"long_name": "U, one state a row"}),
        "target": ("state", np.asarray(problem.target)),
    }
    trajectories: dict[str, np.ndarray] = {}
    recorded = max((batch.recorded for batch in batches.values()), key=len)
    for objective, batch in batches.items():
        seed = "seed" if objective == "policy_gradient" else "baseline_seed"
        trained_on = "unseen" if objective == "minimal_cost" else "seen"
        for group, x0s in (("seen", seen), ("unseen", unseen)):
            X, costs = zip(*(trajectories_of(problem, controller, x0s) for controller in batch.controllers), strict=True)
            trajectories[f"{objective}_{group}"] = np.stack(X)
            data[f"{objective}_{group}_cost"] = (seed, group), np.stack(costs), {"long_name": f"J(π; x) of each {group} state x"}
            data[f"{objective}_{group}_final"] = (seed, group, "state"), np.stack(X)[:, :, -1], {"long_name": "x_H"}
        data |= {
            f"{objective}_status": (seed, batch.codes, STATUS_FLAGS),
            f"{objective}_iterations": (seed, batch.iterations, {"long_name": "updates made"}),
            f"{objective}_training_cost": (seed, data[f"{objective}_{trained_on}_cost"][1].mean(axis=1), {"long_name": "J of the result"}),
            f"{objective}_curve": ((seed, "iteration"), _filled(batch.cost, len(recorded)), {"long_name": "J(S or U) before an update"}),
        }
        for i, layer in enumerate(layers_of(batch)):
            data[f"{objective}_W{i}"] = (seed, f"output{i}", f"input{i}"), layer[0]
            data[f"{objective}_b{i}"] = (seed, f"output{i}"), layer[1]
    coords = {"seed": spec.seeds, "baseline_seed": spec.baseline_seeds, "iteration": recorded}
    result = xr.Dataset(data, coords=coords, attrs={**result_attributes(spec), **_settings(spec)})
    result = result.assign(_measures(result))
    for objective, chosen in (("policy_gradient", "shown_seed"), ("non_extrapolating", "shown_baseline_seed")):
        place = list(seeds_of(spec, objective)).index(int(result[chosen]))
        for group in ("seen", "unseen"):
            shown = trajectories[f"{objective}_{group}"][place]
            result[f"{objective}_{group}_trajectory"] = (group, "time", "state"), shown, {"long_name": "x_0..x_H of the run that is shown"}
    result.attrs["diagnoses"] = "\n\n".join(_diagnoses(spec, problem, batches, seen, unseen))
    return result


def _filled(cost: np.ndarray, length: int) -> np.ndarray:
    """With NaN to the length of the longest objective."""
    return np.pad(cost, ((0, 0), (0, length - cost.shape[1])), constant_values=np.nan)


def trajectories_of(problem: Problem, controller: Any, x0s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Trajectories from each state, and what each costs."""
    with own_errors() as finished:
        trajectories = finished(_rollouts(problem, controller, x0s))
    return np.asarray(trajectories.states), problem.cost_scale * np.asarray(trajectories.costs).sum(axis=1)


@eqx.filter_jit
def _rollouts(problem, controller, x0s):
    return jax.vmap(lambda x0: rollout(problem, controller, x0))(x0s)


def layers_of(batch: Batch) -> list[tuple[np.ndarray, np.ndarray]]:
    """(W, b) of each layer, with a leading axis of runs."""
    network = getattr(batch.weights, "policy", batch.weights)  # of an Observed
    return list(getattr(network, "net", network).layers)


def _measures(result: xr.Dataset) -> dict[str, Any]:
    """J̃*(U), the cost of the non-extrapolating controller, each seed's normalised cost measure (+∞ where it diverged, NaN where there is
    nothing to normalise by), and which seeds these are of.

    Shown are the policy-gradient run of median measure (the lower one of two, and one that did not diverge, if there is any) and the
    non-extrapolating run of lowest training cost  [R24, app:experiments:details:nn:pend].
    """
    ended_well = {name: (result[f"{name}_status"] != int(Status.diverged)).values for name in OBJECTIVES}
    worst = lambda name, values: np.where(ended_well[name] & np.isfinite(values), values, np.inf)  # noqa: E731
    least_costs = worst("minimal_cost", result.minimal_cost_unseen_cost.mean("unseen"))
    least = least_costs.min()
    shown_baseline = int(np.argmin(worst("non_extrapolating", result.non_extrapolating_training_cost)))
    baseline = worst("non_extrapolating", result.non_extrapolating_unseen_cost.mean("unseen"))[shown_baseline]
    costs = worst("policy_gradient", result.policy_gradient_unseen_cost.mean("unseen"))
    measure = (costs - least) / (baseline - least) if least < baseline < np.inf else np.full(len(costs), np.nan)
    order = np.argsort(costs, kind="stable")
    middle = min((len(order) - 1) // 2, max(int(np.isfinite(costs).sum()) - 1, 0))
    return {
        "least_cost": ((), float(least), {"long_name": "J̃*(U): the lowest cost of the runs trained on U"}),
        "baseline_cost": ((), float(baseline), {"long_name": "J(π_no-ext; U)"}),
        "normalized_cost": ("seed", measure, {"long_name": "(J(π; U) − J̃*(U)) / (J(π_no-ext; U) − J̃*(U))"}),
        "shown_seed": ((), int(result.seed[order[middle]])),
        "shown_baseline_seed": ((), int(result.baseline_seed[shown_baseline])),
        "least_seed": ((), int(result.baseline_seed[int(np.argmin(least_costs))])),
    }


def _diagnoses(spec: NetworkSpec, problem: Problem, batches: dict[str, Batch], seen: np.ndarray, unseen: np.ndarray) -> list[str]:
    """A paragraph for each run that diverged, or is finite but stuck."""
    return [
        f"{objective}, seed {seed}: {diagnosis}"
        for objective, batch in batches.items()
        for x0s in [unseen if objective == "minimal_cost" else seen]
        for r, seed in enumerate(seeds_of(spec, objective))
        if batch.codes[r] != Status.converged
        for diagnosis in [diagnose(problem, batch.run(r), x0s, loss=_loss(spec, objective))]
        if diagnosis.what != "nothing"
    ]


def is_near(problem: str, target: Any, x: Any) -> Any:
    """Whether the Euclidean distance of a state's position to the target's is at most `NEAR`."""
    position = jnp.array(SYSTEMS[problem].position if problem in SYSTEMS else range(min(len(target), 2)))
    return jnp.linalg.norm(jnp.asarray(x)[position] - jnp.asarray(target)[position]) <= NEAR


def near_the_target(problem: str) -> str:
    """`is_near` in words: within 0.25 m of the target."""
    unit = SYSTEMS[problem].coordinates[SYSTEMS[problem].position[0]].unit if problem in SYSTEMS else ""
    return " ".join(filter(None, ["within", f"{NEAR:g}", unit, "of the target"]))


def shown_controller(spec: NetworkSpec, result: xr.Dataset) -> MLP | Bounded:
    """Policy gradient's controller of the seed that is shown, from a stored result."""
    shown = result.sel(seed=int(result.shown_seed))
    names = [(f"policy_gradient_W{i}", f"policy_gradient_b{i}") for i in range(spec.depth)]
    if any(name not in result for pair in names for name in pair):
        raise OffspanError(f"the result of {spec.name} holds no networks; run it again to have them.")
    network = MLP([(jnp.asarray(shown[W].values), jnp.asarray(shown[b].values)) for W, b in names])
    return bounded(network, spec.make_problem().control_bounds)


def _settings(spec: NetworkSpec) -> dict[str, Any]:
    problem: Any = spec.make_problem()
    objectives = {name: f"{getattr(spec, name).optimizer}, {getattr(spec, name).learning_rate:g}" for name in OBJECTIVES}
    # Rounded, as it may be in single precision; a system without one is shown by its time steps.
    time_step = {"time_step": float(f"{float(problem.time_step):.6g}")} if hasattr(problem, "time_step") else {}
    rotation = {"rotation": problem.rotation} if hasattr(problem, "rotation") else {}
    preset = {"preset": name} if (name := preset_of(spec)) else {}
    return {**preset, "problem": spec.problem, "horizon": problem.horizon, **time_step, **rotation, **objectives}
