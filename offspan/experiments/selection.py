"""Methods of choosing initial states, compared: each chooses for every system or start, and all that was chosen is trained to the end."""

import math
import warnings
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
import xarray as xr

from offspan.baselines import minimal_cost
from offspan.errors import OffspanError, check_known
from offspan.experiments.estimate import Estimate, check_fits, linear, one_after_another
from offspan.experiments.lqr import STATUS_FLAGS
from offspan.experiments.network import Networks, Objective
from offspan.experiments.parts import part_names, seed_groups
from offspan.experiments.registry import FAMILIES, SYSTEMS, system
from offspan.experiments.selection_training import Instance, instance, stopping, train_sets
from offspan.experiments.spec import Arrays, Matrix, OnChunk, Positive, Rate, Spec, Task, filled, result_attributes
from offspan.problems import LQR, Problem
from offspan.selection import select
from offspan.selection.criteria import CRITERIA
from offspan.selection.evaluations import Setting
from offspan.selection.methods import METHODS
from offspan.selection.pilots import costs_from
from offspan.selection.search import random_sets
from offspan.selection.select import check_pool


class SelectionSpec(Networks):
    """Methods of choosing initial states, compared: `choose` of the candidates by each method, against random sets, all trained to the end.

    For a family of LQRs a seed is a system, trained from K = 0; elsewhere it is a network to begin with. Candidates are e_1..e_dim for an
    LQR, unless they are given; states that are shorter than the problem's are filled up with zeros.
    """

    splits_by_seeds: ClassVar[bool] = True
    kind: Literal["selection"]
    problem: str
    dim: Positive | None = None
    horizon: Positive | None = None
    candidates: Matrix | None = None
    scale: Rate = 1.0
    choose: Positive
    sets: Positive = 100  # random sets to compare with, or all there are
    methods: list[str] = pydantic.Field(min_length=1)
    policy_gradient: Objective
    pilot_sets: Positive = 32
    pilot_iterations: Positive  # of the longest pilot run
    evaluations: Positive = pydantic.Field(20, validation_alias=pydantic.AliasChoices("evaluations", "looks"))

    @pydantic.model_validator(mode="after")
    def _fits_together(self):
        known = [name for name in METHODS if name not in ("random", "exhaustive")]
        for name in self.methods:
            check_known("there is no method to compare", name, known)
        check_known("there is no problem", self.problem, [*FAMILIES, *SYSTEMS])
        if self.is_lqr():
            if self.dim is None or self.horizon is None or self.settings:
                raise OffspanError(f"`{self.problem}` needs `dim` and `horizon`, and has no [settings]")
        elif self.dim is not None or self.horizon is not None or self.candidates is None:
            raise OffspanError(f"a {self.problem} needs `candidates`, and has [settings] in place of `dim` and `horizon`")
        for key in ("iterations", "quick_iterations"):
            if (getattr(self, key) or 0) % self.evaluations:
                raise OffspanError(f"`{key}` is {getattr(self, key)}, but must be a multiple of `evaluations`, {self.evaluations}")
        check_fits(self)
        problem = self.make_problem(self.seeds[0])
        if self.candidates is not None and len(self.candidates[0]) > problem.state_dim:
            raise OffspanError(
                f"`candidates` has states of length {len(self.candidates[0])}, but the problem has {problem.state_dim} numbers"
            )
        pool = self.pool()
        check_pool("the comparison", pool, self.choose, is_linear=self.is_lqr())
        number = math.comb(len(pool), self.choose)
        if self.is_lqr() and number > self.sets:
            raise OffspanError(f"`sets` is {self.sets}, but all {number} sets of an LQR are trained; raise it")
        if "flow" in self.methods and (not self.is_lqr() or self.policy_gradient.optimizer != "gradient-descent"):
            raise OffspanError("the method 'flow' is for an LQR and gradient-descent; leave it out")
        return self

    def pool(self) -> np.ndarray:
        """The candidates (c, n)."""
        n = self.make_problem(self.seeds[0]).state_dim
        return filled(np.eye(n).tolist() if self.candidates is None else self.candidates, n, self.precision)

    def is_lqr(self) -> bool:
        return self.problem in FAMILIES

    def make_problem(self, seed: int) -> Problem:
        if self.is_lqr():
            return FAMILIES[self.problem].make(seed, self.dim or 1, self.horizon or 1)
        return system(self.problem, self.settings)

    def as_quick(self) -> "Spec":
        """Also with fewer seeds, and for a network with fewer sets."""
        iterations = self.quick_iterations or max(self.iterations // 20 // self.evaluations, 1) * self.evaluations
        pilot = max(self.pilot_iterations * iterations // self.iterations, 1)
        fewer = {} if self.is_lqr() else {"sets": min(self.sets, 12), "pilot_sets": min(self.pilot_sets, 8)}
        seeds = self.seeds[: max(len(self.seeds) // 10, 3)]
        return self._variant("quick", iterations=iterations, pilot_iterations=pilot, seeds=seeds, quick=True, **fewer)

    def estimate(self) -> Estimate:
        """Of training on all sets, each evaluated from all candidates as it goes on."""
        count = len(self.candidates) if self.candidates is not None else self.dim or 1
        runs = min(self.sets, math.comb(count, min(self.choose, count))) * len(self.seeds)
        at_once = runs // len(self.seeds) * min(self.seeds_per_task or len(self.seeds), len(self.seeds))
        beside = 24.0 * (self.evaluations + 1) * runs * count
        if self.is_lqr():
            dim, horizon = self.dim or 1, self.horizon or 1
            every = self.iterations // self.evaluations or 1
            trained = linear({self.choose: at_once}, dim, dim, horizon, self.iterations, every)
        else:
            trained = self.estimate_of(self.make_problem(0), at_once, self.choose)
        return one_after_another([trained._replace(runs=runs, operations=trained.operations * runs / max(at_once, 1))], beside)

    def content(self) -> str:
        return f"{self.problem}, {self.choose} of {len(self.pool())} states"


SPEC = SelectionSpec
RUN, METHOD = ("seed", "set"), ("seed", "method")
VARIABLES: dict[str, tuple[str, ...]] = {
    "candidates": ("candidate", "state"),
    "sets": ("set", "seen"),
    "is_random": ("set",),
    "cost": (*RUN, "candidate"),
    **dict.fromkeys(("cost_curve", "alignment_curve", "coverage_curve"), (*RUN, "iteration")),
    **dict.fromkeys(("status", "iterations"), RUN),
    "score": (*RUN, "criterion"),
    **dict.fromkeys(("choice", "rollouts"), METHOD),
    "own_cost": (*METHOD, "candidate"),
    **dict.fromkeys(("explores", "least_cost"), ("seed",)),
    **{name: (name,) for name in ("seed", "method", "criterion", "iteration")},
}
ATTRIBUTES = {"problem": str, **dict.fromkeys(("choose", "pilot_iterations", "pilot_sets"), float)}
POOL_KEY = 20_241  # of the random sets; the same for all seeds, so that methods and random sets are paired


def tasks(spec: SelectionSpec) -> list[Task]:
    """A choice for each seed, training on all sets, and for networks on all candidates, by the states that an iteration rolls out."""
    pilots = spec.choose * spec.pilot_sets * spec.pilot_iterations / spec.iterations / 4
    choices = [Task(_choice(seed), pilots / len(spec.seeds)) for seed in spec.seeds]
    needs, whole = tuple(task.name for task in choices), len(spec.seeds)

    def training(name: str, states: int, needs: tuple[str, ...] = ()) -> list[Task]:
        return [Task(part, states * len(seeds) / whole, needs) for part, seeds in _parts(spec, name).items()]

    sets = training("sets", _pool_size(spec) * spec.choose, needs)
    return [*choices, *sets, *([] if spec.is_lqr() else training("all-candidates", len(spec.pool())))]


def _choice(seed: int) -> str:
    return f"choice-{seed}"


def _parts(spec: SelectionSpec, name: str) -> dict[str, list[int]]:
    """The seeds of each task of a training."""
    groups = seed_groups(spec, spec.seeds)
    return dict(zip(part_names(name, spec, len(groups)), groups, strict=True))


def run_task(spec: SelectionSpec, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    if name.startswith("choice-"):
        return _choose(spec, int(name.removeprefix("choice-")), resume, on_chunk)
    on_sets = name in _parts(spec, "sets")
    sets = all_sets(spec, needed) if on_sets else np.arange(len(spec.pool()))[None]
    seeds = _parts(spec, "sets" if on_sets else "all-candidates")[name]
    return train_sets(spec.model_copy(update={"seeds": seeds}), sets, resume, on_chunk)


def _trained(spec: SelectionSpec, name: str, results: Mapping[str, Arrays]) -> Arrays:
    """The records of a training, run after run."""
    parts = [results[part] for part in _parts(spec, name)]
    axes = {"cost": 1, "alignment": 1, "coverage": 1, "codes": 0, "iterations": 0}
    return {record: np.concatenate([part[record] for part in parts], axis) for record, axis in axes.items()}


def _choose(spec: SelectionSpec, seed: int, resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """What each method chose for one seed, as far as it is known: the first `done` of them.

    `chosen` (method, k), indices in ascending order; `rollouts` (method,); `own_cost` (method, c): J of what the method itself trained on
    its choice, NaN where it trained nothing; `explores`: whether any choice does.
    """
    pool, methods = spec.pool(), len(spec.methods)
    state: dict[str, np.ndarray] = (
        dict(resume)
        if resume
        else {
            "chosen": np.zeros((methods, spec.choose), int),
            "rollouts": np.zeros(methods, int),
            "own_cost": np.full((methods, len(pool)), np.nan),
            "explores": np.array(True),
            "done": np.array(0),
        }
    )
    problem, controller = instance(spec, seed)
    for m in range(int(state["done"]), methods):
        method = spec.methods[m]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "select: ")  # what it warns of stands in the result
            selection = select(
                problem,
                pool,
                spec.choose,
                method=method,
                key=jax.random.fold_in(jax.random.key(seed), m),
                controllers=controller,
                scale=spec.scale,
                # Approximate gradient flow of full length costs no more than a short one.
                iterations=spec.iterations if method == "flow" else spec.pilot_iterations,
                optimizer=spec.policy_gradient.transformation(),
                stop=stopping(spec),
                sets=spec.pilot_sets,
            )
        state = {name: value.copy() for name, value in state.items()} | {"explores": np.array(selection.explores), "done": np.array(m + 1)}
        state["chosen"][m], state["rollouts"][m] = np.sort(selection.indices), selection.rollouts
        if selection.controllers is not None:
            (own,) = selection.controllers
            state["own_cost"][m] = np.inf if own is None else costs_from(problem, [own], jnp.asarray(pool))[0]
        on_chunk((m + 1) / methods, state)
    return state


def all_sets(spec: SelectionSpec, results: Mapping[str, Arrays]) -> np.ndarray:
    """The random sets, and after them what else was chosen: (q, k)."""
    pool = random_sets(jax.random.key(POOL_KEY), len(spec.pool()), spec.choose, spec.sets)
    chosen = _choices(spec, results, "chosen").reshape(-1, spec.choose)
    return np.array(list(dict.fromkeys(map(tuple, [*pool.tolist(), *chosen.tolist()]))))


def _choices(spec: SelectionSpec, results: Mapping[str, Arrays], name: str) -> np.ndarray:
    """One of the arrays of all choices, with a leading axis of seeds."""
    return np.stack([results[_choice(seed)][name] for seed in spec.seeds])


def to_dataset(spec: SelectionSpec, results: Mapping[str, Arrays]) -> xr.Dataset:
    """Costs J, one for each candidate, of every set from every seed; what each method chose; and what was known before training."""
    trained = _trained(spec, "sets", results)
    chosen, rollouts, own_cost, explores = (_choices(spec, results, name) for name in ("chosen", "rollouts", "own_cost", "explores"))
    pool, every, sets = spec.pool(), [instance(spec, seed) for seed in spec.seeds], all_sets(spec, results)
    shape = len(every), len(sets)

    def laid_out(record: np.ndarray) -> np.ndarray:
        """(q, r, …) as (seed, set, …, iteration)."""
        return np.moveaxis(record.reshape(len(record), *shape, *record.shape[2:]), 0, -1)

    def curve(record: np.ndarray) -> np.ndarray:
        """In single precision, which is what a picture shows, and half of the file."""
        return laid_out(record).astype(np.float32)

    place = {tuple(one): i for i, one in enumerate(sets.tolist())}
    choice = np.array([[place[tuple(one)] for one in of_seed] for of_seed in chosen.tolist()])
    costs = laid_out(trained["cost"])
    scores = [_scores(spec, instance, pool, sets) for instance in every]
    least_cost = _least(every, pool, [trained, *([] if spec.is_lqr() else [_trained(spec, "all-candidates", results)])], own_cost)
    data: dict[str, tuple] = {
        "candidates": (("candidate", "state"), pool, {"long_name": "the states to choose from"}),
        "sets": (("set", "seen"), sets, {"long_name": "indices of the candidates in each set"}),
        "is_random": ("set", np.arange(len(sets)) < _pool_size(spec), {"long_name": "drawn at random, not only chosen by a method"}),
        "cost": ((*RUN, "candidate"), costs[..., -1], {"long_name": "J from each candidate after training"}),
        "cost_curve": ((*RUN, "iteration"), curve(trained["cost"].mean(axis=2)), {"long_name": "J over all candidates during training"}),
        "alignment_curve": ((*RUN, "iteration"), curve(trained["alignment"]), {"long_name": "cos(∇J(S), ∇J(all candidates))"}),
        "coverage_curve": ((*RUN, "iteration"), curve(trained["coverage"]), {"long_name": "largest distance to a visited state"}),
        "status": (RUN, trained["codes"].reshape(shape), STATUS_FLAGS),
        "iterations": (RUN, trained["iterations"].reshape(shape), {"long_name": "updates made"}),
        "score": ((*RUN, "criterion"), np.stack(scores), {"long_name": "what is said of the set before training"}),
        "choice": (METHOD, choice, {"long_name": "the set that the method chose"}),
        "rollouts": (METHOD, rollouts, {"long_name": "rollouts that the method made"}),
        "own_cost": ((*METHOD, "candidate"), own_cost, {"long_name": "J from each candidate of what the method itself trained"}),
        "explores": ("seed", explores, {"long_name": "whether any choice explores"}),
        "least_cost": ("seed", least_cost, {"long_name": "the least J over all candidates, or the least that was found"}),
    }
    iterations = spec.iterations // spec.evaluations * np.arange(spec.evaluations + 1)
    coords = {"seed": spec.seeds, "method": spec.methods, "criterion": list(CRITERIA), "iteration": iterations}
    settings = {key: getattr(spec, key) for key in ("problem", "choose", "pilot_iterations", "pilot_sets")}
    training = f"{spec.policy_gradient.optimizer}, {spec.policy_gradient.learning_rate:g}"
    shapes = {"dim": spec.dim, "horizon": spec.horizon} if spec.is_lqr() else {}
    return xr.Dataset(data, coords=coords, attrs={**result_attributes(spec), **settings, **shapes, "policy_gradient": training})


def _pool_size(spec: SelectionSpec) -> int:
    return min(spec.sets, math.comb(len(spec.pool()), spec.choose))


def _scores(spec: SelectionSpec, instance: Instance, pool: np.ndarray, sets: np.ndarray) -> np.ndarray:
    """(set, criterion)"""
    n = instance.problem.state_dim
    setting = Setting(instance.problem, jnp.asarray(pool), [instance.controller], jnp.full(n, spec.scale, pool.dtype))
    return np.stack([criterion(setting).value(sets) for criterion in CRITERIA.values()], axis=1)


def _least(every: list[Instance], pool: np.ndarray, trained: list[Arrays], own_cost: np.ndarray) -> np.ndarray:
    """For an LQR by its closed form; for networks the lowest cost of all runs, among them those that were trained on all candidates."""
    if len(trained) == 1:
        return np.array([float(minimal_cost(problem, pool)) for problem, _ in every if isinstance(problem, LQR)])
    found = [part["cost"][-1].mean(axis=1).min() for part in trained]
    return np.full(len(every), np.nanmin([*found, *own_cost.mean(axis=2).ravel()]))
