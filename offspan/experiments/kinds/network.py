"""Network controllers for a non-linear problem: three objectives, many seeds, and what each controller does with seen and unseen states."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from offspan.baselines import adversarial_objective
from offspan.controllers import MLP, Bounded
from offspan.errors import OffspanError
from offspan.experiments.kinds.results import STATUS_MEANING, attributes, status_numbers
from offspan.experiments.specs.base import filled
from offspan.experiments.specs.network import NetworkSpec, bounded
from offspan.experiments.specs.reading import preset_of
from offspan.problems import Problem, Quadcopter
from offspan.rollout import rollout
from offspan.training import Batch, BatchState, Status, diagnose, train_batch

OBJECTIVES = ("policy_gradient", "non_extrapolating", "minimal_cost")  # the parts of an experiment, in their order


def state_type(part: int) -> type:
    return BatchState


def train(
    spec: NetworkSpec, part: int, earlier: list[BatchState], resume: BatchState | None, on_chunk: Callable[[BatchState], Any]
) -> BatchState:
    """All seeds of one objective."""
    latest = resume

    def keep(state: BatchState) -> None:
        nonlocal latest
        latest = state
        on_chunk(state)

    _train(spec, part, resume, keep)
    assert latest is not None  # a spec has at least one iteration, so there was a chunk
    return latest


def _train(spec: NetworkSpec, part: int, resume: BatchState | None, on_chunk: Callable[[BatchState], Any] | None = None) -> Batch:
    problem, seen, unseen, _ = make(spec)
    objective = OBJECTIVES[part]
    return train_batch(
        problem,
        [spec.first_controller(problem, seed) for seed in seeds_of(spec, objective)],
        unseen if objective == "minimal_cost" else seen,
        optimizer=getattr(spec, objective).transformation(),
        iterations=spec.iterations,
        loss=_loss(spec, objective),
        stop=spec.stopping_rule(),
        record_every=spec.look_every,
        resume=resume,
        on_chunk=on_chunk,
    )


def make(spec: NetworkSpec) -> tuple[Problem, np.ndarray, np.ndarray, np.ndarray]:
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


def to_dataset(spec: NetworkSpec, states: list[BatchState]) -> xr.Dataset:
    """Variables of each objective begin with its name. Trajectories are those of the runs that the paper's figures show."""
    problem, seen, unseen, _ = make(spec)
    batches = {objective: _train(spec, part, states[part]) for part, objective in enumerate(OBJECTIVES)}
    data: dict[str, tuple] = {
        "seen_state": (("seen", "state"), seen, {"long_name": "S, one state a row"}),
        "unseen_state": (("unseen", "state"), unseen, {"long_name": "U, one state a row"}),
        "target": ("state", np.asarray(problem.target)),  # pyright: ignore[reportAttributeAccessIssue]
    }
    trajectories: dict[str, np.ndarray] = {}
    recorded = max((batch.recorded for batch in batches.values()), key=len)
    for objective, batch in batches.items():
        seed = "seed" if objective == "policy_gradient" else "baseline_seed"
        trained_on = "unseen" if objective == "minimal_cost" else "seen"
        for group, x0s in (("seen", seen), ("unseen", unseen)):
            X, costs = zip(*(_roll(problem, controller, x0s) for controller in batch.controllers), strict=True)
            trajectories[f"{objective}_{group}"] = np.stack(X)
            data[f"{objective}_{group}_cost"] = (seed, group), np.stack(costs), {"long_name": f"J(π; x) of each {group} state x"}
            data[f"{objective}_{group}_final"] = (seed, group, "state"), np.stack(X)[:, :, -1], {"long_name": "x_H"}
        data |= {
            f"{objective}_status": (seed, status_numbers(batch.status), STATUS_MEANING),
            f"{objective}_iterations": (seed, batch.iterations, {"long_name": "updates made"}),
            f"{objective}_training_cost": (seed, data[f"{objective}_{trained_on}_cost"][1].mean(axis=1), {"long_name": "J of the result"}),
            f"{objective}_curve": ((seed, "iteration"), _filled(batch.cost, len(recorded)), {"long_name": "J(S or U) before an update"}),
        }
        for i, layer in enumerate(_layers(batch)):
            data[f"{objective}_W{i}"] = (seed, f"output{i}", f"input{i}"), layer[0]
            data[f"{objective}_b{i}"] = (seed, f"output{i}"), layer[1]
    coords = {"seed": spec.seeds, "baseline_seed": spec.baseline_seeds, "iteration": recorded}
    result = xr.Dataset(data, coords=coords, attrs={**attributes(spec), **_settings(spec)})
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


def _roll(problem: Problem, controller: Any, x0s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Trajectories from each state, and what each costs."""
    trajectories = jax.vmap(lambda x0: rollout(problem, controller, x0))(x0s)
    return np.asarray(trajectories.states), problem.cost_scale * np.asarray(trajectories.costs).sum(axis=1)


def _layers(batch: Batch) -> list[tuple[np.ndarray, np.ndarray]]:
    """(W, b) of each layer, with a leading axis of runs."""
    networks = [getattr(controller, "net", controller).layers for controller in batch.controllers]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *networks)
    return list(stacked)


def _measures(result: xr.Dataset) -> dict[str, Any]:
    """J̃*(U), the cost of the non-extrapolating controller, each seed's normalised cost measure (+∞ where it diverged, NaN where there is
    nothing to normalise by), and which seeds these are of.

    Shown are the policy-gradient run of median measure (the lower one of two, and one that did not diverge, if there is any) and the
    non-extrapolating run of lowest training cost  [R24, app:experiments:details:nn:pend].
    """
    ended_well = {name: (result[f"{name}_status"] != status_numbers(np.array([Status.diverged]))[0]).values for name in OBJECTIVES}
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
    """A paragraph for each run that diverged."""
    return [
        f"{objective}, seed {seed}: {diagnose(problem, batch.run(r), x0s, loss=_loss(spec, objective))}"
        for objective, batch in batches.items()
        for x0s in [unseen if objective == "minimal_cost" else seen]
        for r, seed in enumerate(seeds_of(spec, objective))
        if batch.status[r] == Status.diverged
    ]


def shown_controller(spec: NetworkSpec, result: xr.Dataset) -> MLP | Bounded:
    """Policy gradient's controller of the seed that is shown, from a stored result."""
    shown = result.sel(seed=int(result.shown_seed))
    names = [(f"policy_gradient_W{i}", f"policy_gradient_b{i}") for i in range(spec.depth)]
    if any(name not in result for pair in names for name in pair):
        raise OffspanError(f"the result of {spec.name} holds no networks; run it again to have them.")
    network = MLP([(jnp.asarray(shown[W].values), jnp.asarray(shown[b].values)) for W, b in names])
    return bounded(network, spec.make_problem())


def _settings(spec: NetworkSpec) -> dict[str, Any]:
    problem = spec.make_problem()
    objectives = {name: f"{getattr(spec, name).optimizer}, {getattr(spec, name).learning_rate:g}" for name in OBJECTIVES}
    time_step = problem.time_step  # pyright: ignore[reportAttributeAccessIssue]
    rotation = {"rotation": problem.rotation} if isinstance(problem, Quadcopter) else {}
    preset = {"preset": name} if (name := preset_of(spec)) else {}
    return {**preset, "problem": spec.problem, "horizon": problem.horizon, "time_step": time_step, **rotation, **objectives}
