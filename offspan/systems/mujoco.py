"""MuJoCo's models as problems, stepped by its C engine on all cores; `offspan.systems.mjx` has derivatives."""

import contextlib
import copy
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offspan.errors import OffspanError, as_count, extra
from offspan.problems.base import BlackBox

_lock = threading.Lock()  # one for all models: what MuJoCo logs is a setting of the process, and one rollout takes all cores


def from_mujoco(
    model_or_path: Any,
    *,
    stage_cost: Callable[..., Any],
    horizon: int,
    frame_skip: int = 1,
    cost_scale: float = 1.0,
    done: Callable[..., Any] | None = None,
    done_cost: float | None = None,
) -> BlackBox:
    """x_{h+1} = (qpos, qvel) after `frame_skip` steps of MuJoCo from (qpos, qvel) = x_h with ctrl = u_h  [beyond R24].

    The model is an `MjModel`, which is copied, or the path of an XML file; MuJoCo clamps controls to their range. Every step starts at
    time 0 and without the warm start of the one before: a function of x and u alone, which is MuJoCo's own step bit for bit where no
    constraint is active, and to its solver's tolerance where one is. Where MuJoCo calls a simulation unstable (NaN, or a number beyond
    1e10), the next state is NaN. A step is in double precision, also where jax is not. `stage_cost`, `done` and `done_cost` are those of
    `BlackBox`.

    >>> import mujoco, jax.numpy as jnp
    >>> from offspan.systems.mujoco import from_mujoco
    >>> model = mujoco.MjModel.from_xml_string('''
    ... <mujoco><worldbody><body><joint name="rail" type="slide" axis="1 0 0"/><geom size="0.1" mass="2"/></body></worldbody>
    ... <actuator><motor joint="rail" ctrlrange="-1 1"/></actuator></mujoco>''')
    >>> cart = from_mujoco(model, stage_cost=lambda X, U: X[:, 0] ** 2, horizon=50, frame_skip=100)
    >>> cart.coordinates, cart.control_bounds
    (('rail [m]', 'd rail/dt [m/s]'), ((-1.0,), (1.0,)))
    >>> [round(value, 4) for value in cart.step(jnp.zeros(2), jnp.ones(1)).tolist()]  # 0.2 s at 1/2 m/s², in steps of 2 ms
    [0.0101, 0.1]
    """
    model, settings = as_model("from_mujoco", model_or_path)
    engine = _Engine(model, as_count("from_mujoco", "frame_skip", frame_skip, least=1))
    functions = {"step": engine.step, "stage_cost": stage_cost, "done": done}
    return BlackBox(**functions, horizon=horizon, cost_scale=cost_scale, done_cost=done_cost, **settings)


class _Engine:
    """A pool of threads, each with data of its own."""

    def __init__(self, model: Any, frame_skip: int):
        from mujoco import rollout

        self.mujoco, self.model, self.frame_skip = extra("mujoco"), model, frame_skip
        model.opt.disableflags |= self.mujoco.mjtDisableBit.mjDSBL_AUTORESET  # else an unstable state becomes the model's first, silently
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.data = [self.mujoco.MjData(model) for _ in range(threads)]
        self.pool: Any = rollout.Rollout(nthread=threads)

    def step(self, X: np.ndarray, U: np.ndarray) -> np.ndarray:
        stable = self._is_stable(X) & self._is_stable(U)
        X, U = (np.where(stable[:, None], values, 0.0) for values in (X, U))  # MuJoCo takes far longer for NaN
        with quiet(self.mujoco, console=False):
            at_zero = np.concatenate([np.zeros((len(X), 1)), X], axis=1, dtype=float)
            states, _ = self.pool.rollout(self.model, self.data, at_zero, U[:, None], nstep=self.frame_skip)
        time, following = states[:, -1, 0], states[:, -1, 1:]
        stable &= self._is_stable(following) & (time > (self.frame_skip - 0.5) * self.model.opt.timestep)  # it halts at a warning
        return np.where(stable[:, None], following, np.nan)

    def _is_stable(self, values: np.ndarray) -> np.ndarray:
        return np.all(np.abs(values) <= self.mujoco.mjMAXVAL, axis=1)


@contextlib.contextmanager
def quiet(mujoco: Any, *, console: bool) -> Iterator[None]:
    """Inside, MuJoCo writes no MUJOCO_LOG.TXT into the working directory."""
    with _lock:
        before, inside = mujoco.MjLogConfig.get(), mujoco.MjLogConfig.get()
        inside.logto_file, inside.logto_console = False, before.logto_console and console
        inside.set()
        try:
            yield
        finally:
            before.set()


def as_model(where: str, model_or_path: Any) -> tuple[Any, dict[str, Any]]:
    """A copy of the model, and the constructor arguments of the problem that follow from it."""
    mujoco = extra("mujoco")
    if isinstance(model_or_path, mujoco.MjModel):
        model = copy.copy(model_or_path)
    elif not isinstance(model_or_path, str | os.PathLike):
        kind = type(model_or_path).__name__
        raise OffspanError(f"{where}: `model_or_path` is a {kind}, but must be a mujoco.MjModel or the path of an XML file.")
    elif not Path(model_or_path).is_file():
        raise OffspanError(f"{where}: there is no file {str(model_or_path)!r}; pass the path of an XML file, or a mujoco.MjModel.")
    else:
        try:
            with quiet(mujoco, console=True):
                model = mujoco.MjModel.from_xml_path(str(model_or_path))
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise OffspanError(f"{where}: MuJoCo cannot compile {str(model_or_path)!r} ({reason}).") from error
    held = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS) - 1 - model.nq - model.nv  # 1: time
    more = {
        f"{held} numbers of activations, delays or plugins": held,
        f"{model.nmocap} mocap bodies": model.nmocap,
        "bodies that fall asleep": model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP,
    }
    if any(more.values()):
        what = " and ".join(name for name, has in more.items() if has)
        raise OffspanError(f"{where}: the model has {what}, so that its state is more than qpos and qvel; take a model without them.")
    if not (model.nu and model.nq):
        raise OffspanError(f"{where}: the model has {model.nu} actuators and {model.nq} positions; give it at least one of each.")
    bounds = tuple(model.actuator_ctrlrange.T) if np.all(model.actuator_ctrllimited) else None
    sizes = {"state_dim": int(model.nq + model.nv), "control_dim": int(model.nu)}
    return model, {**sizes, "control_bounds": bounds, "coordinates": joint_names(model)}


def joint_names(model: Any) -> tuple[str, ...]:
    """What the numbers of (qpos, qvel) are called, with units: those of a ball are a quaternion and an angular velocity."""
    positions, velocities = [], []
    for j, kind in enumerate(model.jnt_type):
        free, ball, slide = (kind == i for i in range(3))  # of mjtJoint; the fourth is a hinge
        name = model.joint(j).name or f"joint {j}"
        moving = [f"{name} {axis}" for axis in "xyz"] if free else [] if ball else [name]
        unit = "m" if free or slide else "rad"
        positions += [f"{one} [{unit}]" for one in moving] + [f"{name} q{axis}" for axis in "wxyz" if free or ball]
        velocities += [f"d {one}/dt [{unit}/s]" for one in moving] + [f"{name} ω{axis} [rad/s]" for axis in "xyz" if free or ball]
    return (*positions, *velocities)
