"""Tables of a spec that name a system, a controller or a training, and what they stand for."""

import functools
import importlib
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import optax
import pydantic

from offspan.controllers import ACTIVATIONS, MLP, Linear, Observed, load_controller
from offspan.errors import OffspanError, check_known
from offspan.experiments.network import OPTIMIZERS, bounded
from offspan.experiments.registry import system
from offspan.experiments.spec import Matrix, Number, Positive, Rate, Strict
from offspan.host import is_hosted
from offspan.policies import load_policy
from offspan.problems import Problem
from offspan.training import TwoPoint

NAMED = ("problem", "gymnasium", "mujoco", "factory")


class SystemTable(Strict):
    """One of: a system of offspan's own with its `settings`, an environment of Gymnasium, a MuJoCo model, code.

    Code is run only from a table that came out of `trusted`.
    """

    problem: str | None = None
    settings: dict[str, Any] = pydantic.Field({})
    gymnasium: str | None = None
    mujoco: str | None = None  # a path
    frame_skip: Positive = 1
    factory: str | None = None  # "module:function", called without arguments for a problem, or for a pair of problem and controller
    horizon: Positive | None = None
    target: list[Number] | None = None  # what a state costs its squared distance from, for a MuJoCo model
    state_weights: list[Number] | None = None
    control_weight: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.0
    folder: str = "."  # where paths and modules are looked for: that of the spec, unless it says otherwise
    _is_trusted: bool = pydantic.PrivateAttr(False)

    @pydantic.model_validator(mode="after")
    def _one_of_them(self):
        given = [name for name in NAMED if getattr(self, name) is not None]
        if len(given) != 1:
            raise OffspanError("`system` must name one of problem, gymnasium, mujoco and factory")
        if self.settings and given[0] != "problem":
            raise OffspanError(f"`system.settings` are those of a problem, but `system` names {given[0]}")
        if given[0] in ("gymnasium", "mujoco") and self.horizon is None:
            raise OffspanError("`system.horizon` is missing: how many time steps a trajectory has")
        return self

    @property
    def label(self) -> str:
        return str(next(getattr(self, name) for name in NAMED if getattr(self, name) is not None))

    @property
    def names_code(self) -> bool:
        """An environment "module:id" imports the module."""
        return self.factory is not None or ":" in (self.gymnasium or "")

    def trusted(self) -> "SystemTable":
        """The same, and its code may run."""
        table = self.model_copy()
        table._is_trusted = True
        return table

    def make(self) -> tuple[Problem, Any]:
        """The problem, and the controller that came with it, or None."""
        if self.names_code and not self._is_trusted:
            raise OffspanError(
                f"`system` names code, {self.label!r}, which would run with all your rights; if you trust it, say --trust-code."
            )
        if self.factory is not None:
            return self._from_code(self.factory)
        if self.problem is not None:
            return system(self.problem, {**self.settings, **({} if self.horizon is None else {"horizon": self.horizon})}), None
        assert self.horizon is not None  # which was checked when the table was read
        if self.gymnasium is not None:
            from offspan.systems.gymnasium import from_gymnasium

            return from_gymnasium(self.gymnasium, horizon=self.horizon), None
        from offspan.systems.mujoco import from_mujoco

        path = Path(self.folder) / str(self.mujoco)
        return from_mujoco(str(path), stage_cost=self._quadratic, horizon=self.horizon, frame_skip=self.frame_skip), None

    def _quadratic(self, X: np.ndarray, U: np.ndarray) -> np.ndarray:
        away = X if self.target is None else X - np.asarray(self.target)
        weighted = away**2 if self.state_weights is None else np.asarray(self.state_weights) * away**2
        return np.sum(weighted, axis=1) + self.control_weight * np.sum(U**2, axis=1)

    def _from_code(self, factory: str) -> tuple[Problem, Any]:
        module, _, name = factory.partition(":")
        sys.path.insert(0, self.folder)
        try:
            make = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise OffspanError(f"`system.factory` is {factory!r}, but there is no such function ({error}).") from error
        finally:
            sys.path.pop(0)
        made = make()
        problem, controller = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(problem, Problem):
            raise OffspanError(f"{factory!r} returned a {type(made).__name__}, but must return a problem, or a problem and a controller.")
        return problem, controller


class ControllerTable(Strict):
    """One of: a policy (.onnx, .safetensors, or .npz of `save_controller`), a gain with u = K x, a finished run of networks."""

    policy: str | None = None  # a path, from the spec's folder
    low: Number | list[Number] | None = None
    high: Number | list[Number] | None = None
    gain: Matrix | None = None
    run: str | None = None  # the path of its folder, from the spec's

    @pydantic.model_validator(mode="after")
    def _one_of_them(self):
        if self != ControllerTable.model_construct() and [self.policy, self.gain, self.run].count(None) != 2:
            raise OffspanError("`controller` must give one of policy, gain and run")
        if (self.low is not None or self.high is not None) and Path(self.policy or "").suffix not in (".onnx", ".safetensors"):
            raise OffspanError("`controller.low` and `controller.high` clip what a .onnx or .safetensors policy says; leave them out here")
        return self

    def load(self, system: SystemTable, precision: str) -> Any:
        """Of a gain or a policy; a policy of an environment sees what that shows of its state."""
        if self.gain is not None:
            return Linear(np.asarray(self.gain, precision))
        path = Path(system.folder) / str(self.policy)
        if path.suffix == ".npz":
            return load_controller(path)
        return observed(load_policy(path, low=self.low, high=self.high), system)


class NetworkTable(Strict):
    """The networks that are trained: within the bounds of the controls, on the state, or on what an environment shows of it."""

    width: Positive = 50
    depth: Positive = 4
    activation: str = "relu"
    observation: bool = False

    @pydantic.field_validator("activation")
    @classmethod
    def _known(cls, activation: str) -> str:
        check_known("there is no activation", activation, ACTIVATIONS)
        return activation

    def first(self, problem: Problem, system: SystemTable, seed: int) -> Any:
        return self.controller(
            MLP.init(jax.random.key(seed), self._inputs(problem, system), problem.control_dim, **self._size()), problem, system
        )

    def controller(self, network: MLP, problem: Problem, system: SystemTable) -> Any:
        return observed(bounded(network, problem), system) if self.observation else bounded(network, problem)

    def _size(self) -> dict[str, Any]:
        return {"width": self.width, "depth": self.depth, "activation": self.activation}

    def _inputs(self, problem: Problem, system: SystemTable) -> int:
        return _observation(system.gymnasium).size if self.observation else problem.state_dim


def observed(policy: Any, system: SystemTable) -> Any:
    return policy if system.gymnasium is None else Observed(policy, _observation(system.gymnasium))


@functools.cache
def _observation(environment: str | None) -> Any:
    """The same for all controllers of an environment, as those of a batch may differ in their weights alone."""
    if environment is None:
        raise OffspanError("`network.observation` is what an environment of Gymnasium shows, but `system` names none; leave it out")
    from offspan.systems.gymnasium import Observation

    return Observation(environment)


class TrainingTable(Strict):
    """How a controller is trained: by derivatives where the system has them, by two-point estimates elsewhere or when asked for."""

    optimizer: Literal["gradient-descent", "adam"] = "adam"
    learning_rate: Rate = 1e-3
    clip: Rate | None = None
    horizons: list[Positive] | None = None  # shorter ones that training goes through first
    gradient: Literal["exact", "two-point"] | None = None
    radius: Rate = 0.03  # of two points
    directions: Positive = 8

    def options(self, problem: Problem) -> dict[str, Any]:
        """For `train_batch` and `select`."""
        cut = optax.identity() if self.clip is None else optax.clip_by_global_norm(self.clip)
        found: dict[str, Any] = {"optimizer": optax.chain(cut, OPTIMIZERS[self.optimizer](self.learning_rate))}
        if self.horizons is not None:
            found["horizons"] = (*(one for one in self.horizons if one < problem.horizon), problem.horizon)
        if self.gradient == "two-point" or (self.gradient is None and is_hosted(problem)):
            found["gradient"] = TwoPoint(self.radius, self.directions)
        return found


class RetrainTable(TrainingTable):
    iterations: Positive
