"""From a file that names a system, a controller and a region to an audit of it."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pydantic

from offspan.audit import Audit, audit
from offspan.controllers import Linear, Observed, load_controller
from offspan.errors import OffspanError
from offspan.experiments.network import OPTIMIZERS, NetworkSpec, shown_controller
from offspan.experiments.registry import system
from offspan.experiments.spec import Matrix, Number, Positive, Rate, Seed, Strict, filled, read_toml, validated
from offspan.experiments.store import RunFolder
from offspan.policies import load_policy
from offspan.problems import BlackBox, Problem
from offspan.training import TwoPoint

Interval = Annotated[list[Number], pydantic.Field(min_length=2, max_length=2)]


class SystemTable(Strict):
    """One of: a system of offspan's own with its `settings`, an environment of Gymnasium, a MuJoCo model, code."""

    problem: str | None = None
    settings: dict[str, Any] = pydantic.Field({})
    gymnasium: str | None = None
    mujoco: str | None = None  # a path, from the spec's folder
    frame_skip: Positive = 1
    factory: str | None = None  # "module:function", called without arguments for a problem, or for a pair of problem and controller
    horizon: Positive | None = None
    target: list[Number] | None = None  # what a state costs its squared distance from, for a MuJoCo model
    state_weights: list[Number] | None = None
    control_weight: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.0

    @pydantic.model_validator(mode="after")
    def _one_of_them(self):
        given = [name for name in ("problem", "gymnasium", "mujoco", "factory") if getattr(self, name) is not None]
        if len(given) != 1:
            raise OffspanError("`system` must name one of problem, gymnasium, mujoco and factory")
        if self.settings and given[0] != "problem":
            raise OffspanError(f"`system.settings` are those of a problem, but `system` names {given[0]}")
        if given[0] in ("gymnasium", "mujoco") and self.horizon is None:
            raise OffspanError("`system.horizon` is missing: how many time steps a trajectory has")
        return self


class ControllerTable(Strict):
    """One of: a policy (.onnx, .safetensors, or .npz of `save_controller`), a gain with u = K x, a finished run of networks."""

    policy: str | None = None  # a path, from the spec's folder
    low: Number | list[Number] | None = None
    high: Number | list[Number] | None = None
    gain: Matrix | None = None
    run: str | None = None  # the path of its folder, from the spec's


class RetrainTable(Strict):
    optimizer: Literal["gradient-descent", "adam"] = "adam"
    learning_rate: Rate = 1e-3
    clip: Rate | None = None
    iterations: Positive
    horizons: list[Positive] | None = None
    radius: Rate = 0.03  # of two points, where the system has no derivatives
    directions: Positive = 8


class AuditSpec(Strict):
    """The content of a file for `offspan audit`. Coordinates are numbered from 0."""

    name: str = pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    title: str = ""
    precision: Literal["float32", "float64"] = "float64"
    system: SystemTable
    controller: ControllerTable = ControllerTable()
    seen_states: Matrix
    region: dict[str, Interval] = pydantic.Field(min_length=1)
    success: dict[str, Interval] | None = None  # where the last state must be
    angles: list[int] = pydantic.Field([])  # coordinates of `success` for which 2π more or less is the same
    at: list[Number] | None = None
    states: Positive = 1_000
    points: Positive = 41
    worst: Positive = 5
    add: Positive = 2
    seed: Seed = 0
    retrain: RetrainTable | None = None


def audit_file(path: Path, *, trust_code: bool, progress: Callable[[float], Any] | None = None) -> tuple[AuditSpec, Audit]:
    spec = validated(AuditSpec, read_toml(path), str(path))
    with jax.enable_x64(spec.precision == "float64"):
        problem, controller = _loaded(spec, path, trust_code)
        n = problem.state_dim
        region, success = (_by_coordinate(path, name, getattr(spec, name), n) for name in ("region", "success"))
        if wrong := [d for d in spec.angles if d not in (success or {})]:
            raise OffspanError(f"{path}: `angles` names coordinate {wrong[0]}, of which `success` says nothing; leave it out.")
        found = audit(
            problem,
            controller,
            filled(spec.seen_states, n, spec.precision) if len(spec.seen_states[0]) <= n else spec.seen_states,
            region,
            success=None if success is None else _within(success, spec.angles),
            at=spec.at,
            states=spec.states,
            points=spec.points,
            worst=spec.worst,
            add=spec.add,
            key=jax.random.key(spec.seed),
            retrain=None if spec.retrain is None else _training(spec.retrain, problem),
            progress=progress,
        )
        return spec, found


def _loaded(spec: AuditSpec, path: Path, trust_code: bool) -> tuple[Problem, Any]:
    asked, folder = spec.system, path.parent
    if asked.gymnasium is not None and ":" in asked.gymnasium and not trust_code:
        raise OffspanError(f"{path}: `system.gymnasium` is {asked.gymnasium!r}, which imports code; if you trust it, say --trust-code.")
    made: Any = _problem(asked, folder) if asked.factory is None else _from_code(asked.factory, path, trust_code)
    if isinstance(made, tuple) and spec.controller != ControllerTable():
        raise OffspanError(f"{path}: {asked.factory!r} returned a controller, so that the table [controller] has no effect; leave one out.")
    return made if isinstance(made, tuple) else (made, _controller(spec, folder))


def _problem(asked: SystemTable, folder: Path) -> Problem:
    if asked.problem is not None:
        return system(asked.problem, {**asked.settings, **({} if asked.horizon is None else {"horizon": asked.horizon})})
    assert asked.horizon is not None  # which the table has checked
    if asked.gymnasium is not None:
        from offspan.systems.gymnasium import from_gymnasium

        return from_gymnasium(asked.gymnasium, horizon=asked.horizon)
    from offspan.systems.mujoco import from_mujoco

    target, weights = (None if values is None else np.asarray(values) for values in (asked.target, asked.state_weights))

    def stage_cost(X, U):
        away = X if target is None else X - target
        return np.sum((away**2 if weights is None else weights * away**2), axis=1) + asked.control_weight * np.sum(U**2, axis=1)

    return from_mujoco(str(folder / str(asked.mujoco)), stage_cost=stage_cost, horizon=asked.horizon, frame_skip=asked.frame_skip)


def _from_code(factory: str, path: Path, trust_code: bool) -> Any:
    if not trust_code:
        raise OffspanError(
            f"{path}: `system.factory` names code, {factory!r}, which runs with all your rights; if you trust it, say --trust-code."
        )
    module, _, name = factory.partition(":")
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OffspanError(f"{path}: `system.factory` is {factory!r}, but there is no such function ({error}).") from error
    finally:
        sys.path.pop(0)
    made = make()
    if not isinstance(made[0] if isinstance(made, tuple) and len(made) == 2 else made, Problem):
        raise OffspanError(
            f"{path}: {factory!r} returned a {type(made).__name__}, but must return a problem, or a problem and a controller."
        )
    return made


def _controller(spec: AuditSpec, folder: Path) -> Any:
    asked = spec.controller
    if [asked.policy, asked.gain, asked.run].count(None) != 2:
        raise OffspanError("`controller` must give one of policy, gain and run")
    if (asked.low is not None or asked.high is not None) and Path(asked.policy or "").suffix not in (".onnx", ".safetensors"):
        raise OffspanError("`controller.low` and `controller.high` clip what a .onnx or .safetensors policy says; leave them out here")
    if asked.gain is not None:
        return Linear(np.asarray(asked.gain, spec.precision))
    if asked.run is not None:
        stored = RunFolder(folder / asked.run)
        run = stored.spec()
        if not isinstance(run, NetworkSpec):
            raise OffspanError(f"`controller.run` is {asked.run!r}, a run of the kind {run.kind}, but must be one of networks")
        return shown_controller(run, stored.load_result())
    path = folder / str(asked.policy)
    if path.suffix == ".npz":
        return load_controller(path)
    policy = load_policy(path, low=asked.low, high=asked.high)
    if spec.system.gymnasium is None:
        return policy
    from offspan.systems.gymnasium import Observation

    return Observed(policy, Observation(spec.system.gymnasium))


def _by_coordinate(path: Path, name: str, table: dict[str, list[float]] | None, n: int) -> dict[int, tuple[float, float]] | None:
    if table is None:
        return None
    if wrong := [d for d in table if not d.isdigit() or int(d) >= n]:
        raise OffspanError(f"{path}: `{name}` has an entry {wrong[0]!r}, but coordinates are 0 to {n - 1}.")
    if wrong := [d for d, (low, high) in table.items() if low >= high]:
        raise OffspanError(f"{path}: `{name}.{wrong[0]}` is {table[wrong[0]]}, but must be an interval [low, high].")
    return {int(d): (low, high) for d, (low, high) in table.items()}


def _within(intervals: dict[int, tuple[float, float]], angles: list[int]) -> Callable[..., Any]:
    def success(x):
        inside = jnp.asarray(True)
        for d, (low, high) in intervals.items():
            middle = (low + high) / 2
            away = jnp.arctan2(jnp.sin(x[d] - middle), jnp.cos(x[d] - middle)) if d in angles else x[d] - middle
            inside &= jnp.abs(away) <= (high - low) / 2
        return inside

    return success


def _training(asked: RetrainTable, problem: Problem) -> dict[str, Any]:
    cut = optax.identity() if asked.clip is None else optax.clip_by_global_norm(asked.clip)
    options: dict[str, Any] = {
        "optimizer": optax.chain(cut, OPTIMIZERS[asked.optimizer](asked.learning_rate)),
        "iterations": asked.iterations,
    }
    if asked.horizons is not None:
        options["horizons"] = asked.horizons
    return options | ({"gradient": TwoPoint(asked.radius, asked.directions)} if isinstance(problem, BlackBox) else {})
