"""Specs with network controllers for non-linear problems."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

import jax
import optax
import pydantic

from offspan.controllers import MLP, Bounded
from offspan.errors import OffspanError, nearest
from offspan.experiments.specs.base import Matrix, Positive, Rate, Seed, Spec, Strict, distinct
from offspan.problems import Pendulum, Problem, Quadcopter
from offspan.training import NoImprovement
from offspan.training.loop import CHUNK

PROBLEMS: dict[str, Callable[..., Problem]] = {"pendulum": Pendulum, "quadcopter": Quadcopter}
OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {"gradient-descent": optax.sgd, "adam": optax.adam}


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


def check_settings(problem: str, settings: dict[str, Any]) -> int:
    """The dimension of the problem's states, if the settings fit it."""
    known = list(inspect.signature(PROBLEMS[problem]).parameters)
    if unknown := [key for key in settings if key not in known]:
        raise OffspanError(f"a {problem} has no setting {unknown[0]!r}{nearest(unknown[0], known)}; there are {', '.join(known)}")
    try:
        return PROBLEMS[problem](**settings).state_dim
    except TypeError as error:
        raise OffspanError(f"[settings] do not fit a {problem}: {error}") from None


class Networks(Spec):
    """What specs with networks share: their size, and the rule that stops their training  [R24, app:experiments:details:nn:pend]."""

    settings: dict[str, Any] = pydantic.Field({})
    width: Positive = 50
    depth: Positive = 4
    look_every: Positive = 100
    patience: Positive = 50
    gain: Rate = 1e-5

    @pydantic.field_validator("look_every")
    @classmethod
    def _divides_a_chunk(cls, every: int) -> int:
        if CHUNK % every:
            raise OffspanError(f"must divide {CHUNK}")
        return every

    def first_controller(self, problem: Problem, seed: int) -> MLP | Bounded:
        """Where a seed begins, whatever the objective."""
        return bounded(MLP.init(jax.random.key(seed), problem.state_dim, problem.control_dim, width=self.width, depth=self.depth), problem)

    def stopping_rule(self) -> NoImprovement:
        return NoImprovement(every=self.look_every, patience=self.patience, gain=self.gain)


def bounded(network: MLP, problem: Problem) -> MLP | Bounded:
    """Within the bounds of the problem's controls, if it has any."""
    return network if problem.control_bounds is None else Bounded(network, *problem.control_bounds)


class NetworkSpec(Networks):
    """Network controllers for a non-linear problem: policy gradient on S, a controller that was trained not to extrapolate, and J̃*(U).

    States and targets that are shorter than the problem's states are filled up with zeros.
    """

    kind: Literal["network"]
    problem: Literal["pendulum", "quadcopter"]
    seen_states: Matrix
    unseen_states: Matrix
    baseline_seeds: list[Seed] = pydantic.Field([0, 1, 2, 3, 4], min_length=1)  # of the two objectives that are compared with
    policy_gradient: Objective
    non_extrapolating: Adversarial
    minimal_cost: Objective

    @pydantic.field_validator("seeds", "baseline_seeds")
    @classmethod
    def _each_once(cls, values):
        return distinct(values)

    @pydantic.model_validator(mode="after")
    def _fits_together(self):
        n = check_settings(self.problem, self.settings)
        for name in ("seen_states", "unseen_states"):
            if len(getattr(self, name)[0]) > n:
                raise OffspanError(f"`{name}` has states of length {len(getattr(self, name)[0])}, but a {self.problem} has {n} numbers")
        targets = self.non_extrapolating.targets
        if len(targets[0]) > n or len(targets) not in (1, len(self.unseen_states)):
            raise OffspanError(f"`non_extrapolating.targets` must be one state of at most {n} numbers, or one for each unseen state")
        return self

    def make_problem(self) -> Problem:
        return PROBLEMS[self.problem](**self.settings)

    def part_weights(self) -> list[float]:
        """Policy gradient, the non-extrapolating controller and the minimal cost, by the states that an iteration rolls out."""
        seen, unseen = len(self.seen_states), len(self.unseen_states)
        return [float(seen), float(seen + unseen), float(unseen)]

    def content(self) -> str:
        return f"{self.problem}, {len(self.seen_states)} seen and {len(self.unseen_states)} unseen states"
