"""Tables of a spec that name a system, a controller or a training, and what they stand for."""

import contextlib
import functools
import hashlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import pydantic

from offspan.controllers import ACTIVATIONS, MLP, Linear, Observed, load_controller
from offspan.errors import OffspanError, check_known
from offspan.experiments.network import OPTIMIZERS, bounded, clipped
from offspan.experiments.registry import system
from offspan.experiments.spec import Matrix, Number, Positive, Rate, Strict
from offspan.host import is_hosted
from offspan.policies import load_policy
from offspan.problems import Problem
from offspan.training import TwoPoint

NAMED = ("problem", "gymnasium", "mujoco", "factory")
OWNERS = {  # of the keys that some systems have
    "settings": ("problem",),
    "horizon": ("problem", "gymnasium", "mujoco"),
    **dict.fromkeys(("frame_skip", "target", "state_weights", "control_weight"), ("mujoco",)),
}


class SystemTable(Strict):
    """One of: a system of offspan's own with its `settings`, an environment of Gymnasium, a MuJoCo model, code.

    Code is run only from a table that came out of `trusted`. `folder` and `fingerprint` are filled in when a spec is read: where its paths
    and modules are, and a hash of the model or module, so that a run is not continued with another one.
    """

    problem: str | None = None
    settings: dict[str, Any] = pydantic.Field({})
    gymnasium: str | None = None
    mujoco: str | None = None  # a path
    frame_skip: Positive | None = None
    factory: str | None = None  # "module:function", called without arguments for a problem, or for a pair of problem and controller
    horizon: Positive | None = None
    target: list[Number] | None = None  # what a state costs its squared distance from, for a MuJoCo model
    state_weights: list[Number] | None = None
    control_weight: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] | None = None
    folder: str = "."
    fingerprint: str = ""
    _is_trusted: bool = pydantic.PrivateAttr(False)

    @pydantic.model_validator(mode="after")
    def _one_of_them(self):
        given = [name for name in NAMED if getattr(self, name) is not None]
        if len(given) != 1:
            raise OffspanError("`system` must name one of problem, gymnasium, mujoco and factory")
        for key, owners in OWNERS.items():
            if getattr(self, key) not in (None, {}) and given[0] not in owners:
                raise OffspanError(f"`system.{key}` has no effect where `system` names a {given[0]}; leave it out")
        if given[0] in ("gymnasium", "mujoco") and self.horizon is None:
            raise OffspanError("`system.horizon` is missing: how many time steps a trajectory has")
        return self

    @property
    def label(self) -> str:
        return str(next(getattr(self, name) for name in NAMED if getattr(self, name) is not None))

    def trusted(self) -> "SystemTable":
        """The same, and its code may run."""
        table = self.model_copy()
        table._is_trusted = True
        return table

    def located(self, folder: Path) -> "SystemTable":
        """With paths and modules meant from this folder, unless it has one of its own already."""
        placed = self.model_copy(update={"folder": str((folder / self.folder).resolve())})
        return placed if self.fingerprint else placed.model_copy(update={"fingerprint": placed._current_fingerprint()})

    def make(self) -> tuple[Problem, Any]:
        """The problem, and the controller that came with it, or None."""
        self.check_trusted()
        if self.fingerprint not in ("", current := self._current_fingerprint()):
            missing = "is not there any more" if not current else "has changed since the run began; give the spec another `name`"
            raise OffspanError(f"{self.label!r} in {self.folder} {missing}.")
        if self.factory is not None:
            return self._from_code(self.factory)
        if self.problem is not None:
            return system(self.problem, {**self.settings, **({} if self.horizon is None else {"horizon": self.horizon})}), None
        assert self.horizon is not None  # which was checked when the table was read
        if self.gymnasium is not None:
            from offspan.systems.gymnasium import from_gymnasium

            return from_gymnasium(self.gymnasium, horizon=self.horizon), None
        from offspan.systems.mujoco import from_mujoco

        path, steps = Path(self.folder) / str(self.mujoco), self.frame_skip or 1
        problem = from_mujoco(str(path), stage_cost=self._quadratic, horizon=self.horizon, frame_skip=steps)
        for name in ("target", "state_weights"):
            if (values := getattr(self, name)) is not None and len(values) != problem.state_dim:
                raise OffspanError(f"`system.{name}` has {len(values)} numbers, but a state of {self.mujoco} has {problem.state_dim}")
        return problem, None

    def observation(self) -> Any:
        """What an environment shows of its state; the same value for all controllers, as those of a batch differ in weights alone."""
        self.check_trusted()
        if self.gymnasium is None:
            raise OffspanError("`network.observation` is what an environment of Gymnasium shows, but `system` names none; leave it out")
        return _observation(self.gymnasium)

    def check_trusted(self) -> None:
        """An environment "module:id" imports the module."""
        if not self._is_trusted and (self.factory is not None or ":" in (self.gymnasium or "")):
            raise OffspanError(
                f"`system` names code, {self.label!r} in {self.folder}, which would run with all your rights; if you trust it, say "
                "--trust-code."
            )

    def check_travels(self, this_machine: bool) -> None:
        """Raises where it names what a worker of a cluster must not run, or may not have."""
        if self.factory is not None or ":" in (self.gymnasium or ""):
            raise OffspanError(f"`system` names code, {self.label!r}, which no cluster is sent; run the spec without --cluster.")
        if self.mujoco is not None and not this_machine:
            raise OffspanError(f"`system` names a file, {self.label!r}, which other machines may not have; use --cluster local:N.")

    def _current_fingerprint(self) -> str:
        """Of the model's file, or of the module or package that is named, where it lies in the folder; else empty."""
        code = self.factory or (self.gymnasium if ":" in (self.gymnasium or "") else None)
        if self.mujoco is not None:
            files = [Path(self.folder) / self.mujoco]
        elif code is not None:
            package = Path(self.folder) / (name := code.partition(":")[0].partition(".")[0])
            # What is no name of a module would be all that is in the folder, or in another one.
            files = [package.with_name(f"{name}.py"), *sorted(package.rglob("*.py"))] if name and name == package.name else []
        else:
            files = []
        there = [path for path in files if path.is_file()]
        if len(there) <= 1:
            return hashlib.sha256(there[0].read_bytes()).hexdigest() if there else ""
        found = [(str(path.relative_to(self.folder)), path.read_bytes()) for path in there]
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def _quadratic(self, X: np.ndarray, U: np.ndarray) -> np.ndarray:
        away = X if self.target is None else X - np.asarray(self.target)
        weighted = away**2 if self.state_weights is None else np.asarray(self.state_weights) * away**2
        return np.sum(weighted, axis=1) + (self.control_weight or 0.0) * np.sum(U**2, axis=1)

    def _from_code(self, factory: str) -> tuple[Problem, Any]:
        """What the code itself raises comes out as it is."""
        module, _, name = factory.partition(":")
        with _on_path(self.folder):
            missing = OffspanError(f"`system.factory` is {factory!r}, but there is no module {module!r} in {self.folder}.")
            if not all(module.split(".")):
                raise missing
            try:
                make = getattr(importlib.import_module(module), name or "-", None)
            except ModuleNotFoundError as error:
                if not f"{module}.".startswith(f"{error.name}."):  # another one, which the code itself imports
                    raise
                raise missing from None
            if not callable(make):
                raise OffspanError(f"`system.factory` is {factory!r}, but {module} has no such function.")
            made = make()
        problem, controller = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(problem, Problem):
            raise OffspanError(f"{factory!r} returned a {type(made).__name__}, but must return a problem, or a problem and a controller.")
        return problem, controller


@contextlib.contextmanager
def _on_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@functools.cache
def _observation(environment: str) -> Any:
    from offspan.systems.gymnasium import Observation

    return Observation(environment)


class ControllerTable(Strict):
    """One of: a policy (.onnx, .safetensors, or .npz of `save_controller`), a gain with u = K x, a finished run of networks."""

    policy: str | None = None  # a path, from the spec's folder
    low: Number | list[Number] | None = None
    high: Number | list[Number] | None = None
    activation: str | None = None  # of a .safetensors policy that does not name its own
    gain: Matrix | None = None
    run: str | None = None  # the path of its folder, from the spec's

    @pydantic.model_validator(mode="after")
    def _one_of_them(self):
        if self != ControllerTable.model_construct() and [self.policy, self.gain, self.run].count(None) != 2:
            raise OffspanError("`controller` must give one of policy, gain and run")
        if (self.low is not None or self.high is not None) and Path(self.policy or "").suffix not in (".onnx", ".safetensors"):
            raise OffspanError("`controller.low` and `controller.high` clip what a .onnx or .safetensors policy says; leave them out here")
        if self.activation is not None and Path(self.policy or "").suffix != ".safetensors":
            raise OffspanError("`controller.activation` is that of a .safetensors policy; leave it out here")
        return self

    def load(self, system: SystemTable, precision: str) -> Any:
        """Of a gain or a policy; one from elsewhere, for an environment, sees what that shows of its state."""
        if self.gain is not None:
            return Linear(np.asarray(self.gain, precision))
        path = Path(system.folder) / str(self.policy)
        if path.suffix == ".npz":
            return load_controller(path)
        policy = load_policy(path, low=self.low, high=self.high, activation=self.activation)
        return policy if system.gymnasium is None else Observed(policy, system.observation())


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
        inputs = system.observation().size if self.observation else problem.state_dim
        size = {"width": self.width, "depth": self.depth, "activation": self.activation}
        return self.controller(MLP.init(jax.random.key(seed), inputs, problem.control_dim, **size), problem.control_bounds, system)

    def controller(self, network: MLP, bounds: Any, system: SystemTable) -> Any:
        return Observed(bounded(network, bounds), system.observation()) if self.observation else bounded(network, bounds)


class TrainingTable(Strict):
    """How a controller is trained: by derivatives where the system has them, by two-point estimates elsewhere or when asked for."""

    optimizer: Literal["gradient-descent", "adam"] = "adam"
    learning_rate: Rate = 1e-3
    clip: Rate | None = None
    horizons: Annotated[list[Positive], pydantic.Field(min_length=1)] | None = None  # shorter ones that training goes through first
    gradient: Literal["exact", "two-point"] | None = None
    radius: Rate = 0.03  # of two points
    directions: Positive = 8

    def options(self, problem: Problem) -> dict[str, Any]:
        """For `train_batch` and `select`."""
        found: dict[str, Any] = {"optimizer": clipped(OPTIMIZERS[self.optimizer](self.learning_rate), self.clip)}
        if self.horizons is not None:
            found["horizons"] = self.horizons if self.horizons[-1] == problem.horizon else [*self.horizons, problem.horizon]
        if self.gradient == "two-point" or (self.gradient is None and is_hosted(problem)):
            found["gradient"] = TwoPoint(self.radius, self.directions)
        return found


class RetrainTable(TrainingTable):
    iterations: Positive
