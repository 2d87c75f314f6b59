"""Gymnasium's environments as problems: classic control and MuJoCo, reset to any state."""

import contextlib
import importlib.util
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from offspan import host
from offspan.errors import OffspanError, as_count, extra
from offspan.problems.base import BlackBox
from offspan.systems.mujoco import joint_names, quiet

KEPT = 4  # batches whose steps are remembered: the cost and the next state of one are asked for separately
_lock = threading.RLock()  # one for all, as the same environment may be in a problem and in an observation
NAMES = {  # of environments whose states have no names of their own
    "PendulumEnv": ("θ [rad]", "dθ/dt [rad/s]"),
    "CartPoleEnv": ("position [m]", "velocity [m/s]", "θ [rad]", "dθ/dt [rad/s]"),
    "Continuous_MountainCarEnv": ("position", "velocity"),
    "MountainCarEnv": ("position", "velocity"),
    "AcrobotEnv": ("θ₁ [rad]", "θ₂ [rad]", "dθ₁/dt [rad/s]", "dθ₂/dt [rad/s]"),
}


# Where environments that keep no record of it end, as their `step` says; those of MuJoCo that know when they are healthy need none.
ENDS: dict[str, Callable[..., Any]] = {
    "PendulumEnv": lambda env, x: False,
    "CartPoleEnv": lambda env, x: abs(x[0]) > env.x_threshold or abs(x[2]) > env.theta_threshold_radians,
    "MountainCarEnv": lambda env, x: x[0] >= env.goal_position and x[1] >= env.goal_velocity,
    "Continuous_MountainCarEnv": lambda env, x: x[0] >= env.goal_position and x[1] >= env.goal_velocity,
    "AcrobotEnv": lambda env, x: -np.cos(x[0]) - np.cos(x[1] + x[0]) > 1,
    "InvertedPendulumEnv": lambda env, x: not np.all(np.isfinite(x)) or abs(x[1]) > 0.2,
}


def from_gymnasium(
    env_or_id: Any,
    *,
    horizon: int,
    stage_cost: Callable[..., Any] | None = None,
    done: Callable[..., Any] | None = None,
    cost_scale: float = 1.0,
    processes: int = 1,
) -> BlackBox:
    """x_{h+1} and −reward of `env.step(u_h)` from the state x_h, without wrappers and without the environment's time limit  [beyond R24].

    A state is `env.unwrapped.state` for classic control, and (qpos, qvel) for MuJoCo, which is reset before each step, so that the next
    state depends on x and u alone. A NumPy function of batches `stage_cost(X, U)` may take the place of −reward. Where the environment
    terminates, the trajectory ends, and costs nothing from then on (with your own stage cost: what it says of that state); a start at such
    a state has ended at once. For environments whose end offspan does not know, `done(X)` says which states of a batch are the end. For
    discrete actions a control has one number for each, and the largest is taken. One environment simulates all states, one after another,
    your own if you pass one; where it is MuJoCo's, its automatic reset of unstable states is switched off. With `processes`, and the id of
    an environment, each process has one of its own and a share of the states, bit for bit the same; a script that does so starts its work
    under `if __name__ == "__main__":`.

    >>> import numpy as np, offspan
    >>> from offspan.systems.gymnasium import from_gymnasium
    >>> pendulum = from_gymnasium("Pendulum-v1", horizon=200)
    >>> pendulum.coordinates, pendulum.control_bounds
    (('θ [rad]', 'dθ/dt [rad/s]'), ((-2.0,), (2.0,)))
    >>> float(offspan.cost(from_gymnasium("Pendulum-v1", horizon=1), offspan.Linear([[0.0, 0.0]]), np.array([[np.pi, 0.0]])).round(6))
    19.739209
    """
    environment = _Environment("from_gymnasium", env_or_id, knows_its_end=done is not None)
    if as_count("from_gymnasium", "processes", processes, least=1) > 1:
        environment.share_with(env_or_id, processes)
    return BlackBox(
        environment.step,
        environment.cost if stage_cost is None else stage_cost,
        state_dim=environment.state_dim,
        control_dim=environment.control_dim,
        horizon=horizon,
        cost_scale=cost_scale,
        control_bounds=environment.bounds,
        done=environment.has_ended if done is None else done,
        done_cost=0.0 if stage_cost is None else None,
        coordinates=environment.names,
    )


class Observation(eqx.Module):
    """x ↦ what the environment shows of it, for `Observed(policy, Observation(env_or_id))`  [beyond R24].

    >>> import jax.numpy as jnp
    >>> from offspan.systems.gymnasium import Observation
    >>> Observation("Pendulum-v1")(jnp.array([0.0, 2.0])).tolist()  # cos θ, sin θ, dθ/dt
    [1.0, 0.0, 2.0]
    """

    function: Callable[..., Any]
    size: int = eqx.field(static=True)
    on_host: ClassVar[bool] = True

    def __init__(self, env_or_id: Any):
        environment = _Environment("Observation", env_or_id)
        self.function = jax.tree_util.Partial(environment.observe)  # pyright: ignore[reportAttributeAccessIssue]
        self.size = environment.observe(np.zeros((1, environment.state_dim))).shape[1]

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "k"]:
        return host.call("Observation: the environment", self.function.func, (self.size,), x)  # pyright: ignore[reportFunctionMemberAccess]


def _without_log() -> contextlib.AbstractContextManager[None]:
    """What MuJoCo says inside goes into no file."""
    return contextlib.nullcontext() if importlib.util.find_spec("mujoco") is None else quiet(extra("mujoco"), console=False)


class _Environment:
    """One environment that is set to one state after another; safe to be called from several threads."""

    def __init__(self, where: str, env_or_id: Any, *, knows_its_end: bool = False):
        gymnasium = extra("gymnasium")
        if isinstance(env_or_id, str):
            try:
                with _without_log():
                    env_or_id = gymnasium.make(env_or_id)
            except (gymnasium.error.Error, ImportError) as error:
                reason = str(error).splitlines()[0].rstrip(".")
                raise OffspanError(f"{where}: Gymnasium cannot make the environment {env_or_id!r} ({reason}).") from error
        if not isinstance(env_or_id, gymnasium.Env):
            raise OffspanError(f"{where}: `env_or_id` is a {type(env_or_id).__name__}, but must be an environment of Gymnasium, or its id.")
        self.env: Any = env_or_id.unwrapped  # a wrapper has no state to set, and may count time steps
        with _without_log():
            self.env.reset(seed=0)
        self.memo, self.knows_its_end = {}, knows_its_end
        self.pool: tuple[str, bool, int] | None = None  # a key of `_pools`
        self.is_mujoco = hasattr(self.env, "set_state") and hasattr(self.env, "model") and hasattr(self.env, "data")
        name = type(self.env).__name__
        if self.is_mujoco:
            self.mujoco, self.nq = extra("mujoco"), int(self.env.model.nq)
            self.env.model.opt.disableflags |= self.mujoco.mjtDisableBit.mjDSBL_AUTORESET  # else an unstable state becomes the first
            if self.env.model.na:
                raise OffspanError(f"{where}: {name} has actuators with a state of their own, which (qpos, qvel) does not hold.")
        elif np.ndim(getattr(self.env, "state", 0.0)) != 1:
            raise OffspanError(
                f"{where}: {name} keeps its state neither in `env.unwrapped.state` nor in a MuJoCo model, so that it cannot be reset to a "
                "chosen state; write its simulator as a BlackBox."
            )
        self.state_dim = len(self._state())
        space = self.env.action_space
        self.is_discrete = isinstance(space, gymnasium.spaces.Discrete)
        if not self.is_discrete and not (isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1):
            raise OffspanError(f"{where}: the actions of {name} are {space}, but must be a vector or one of several.")
        self.control_dim = int(space.n) if self.is_discrete else space.shape[0]
        limited = not self.is_discrete and np.all(np.isfinite([space.low, space.high]))
        self.bounds = (space.low.astype(float), space.high.astype(float)) if limited else None
        names = joint_names(self.env.model) if self.is_mujoco else NAMES.get(name, ())
        self.names = names if len(names) == self.state_dim else None

    def share_with(self, name: Any, processes: int) -> None:
        """Has the steps made by processes, each with an environment of that name."""
        if not isinstance(name, str):
            raise OffspanError(f"from_gymnasium: `processes` is {processes}, but each needs an environment of its own; pass the id of one.")
        self.pool = name, self.knows_its_end, processes
        self._advance_apart(self.pool, np.zeros((0, self.state_dim)), np.zeros((0, self.control_dim)))  # fails now, if it must

    def _without_log(self) -> contextlib.AbstractContextManager[None]:
        return _without_log() if self.is_mujoco else contextlib.nullcontext()

    def step(self, X: np.ndarray, U: np.ndarray) -> np.ndarray:
        return self._advance(X, U)[0]

    def cost(self, X: np.ndarray, U: np.ndarray) -> np.ndarray:
        return -self._advance(X, U)[1]

    def has_ended(self, X: np.ndarray) -> np.ndarray:
        with _lock, self._without_log():
            return np.array([self._has_ended(x) for x in X])

    def _has_ended(self, x: np.ndarray) -> bool:
        ends = ENDS.get(type(self.env).__name__)
        if ends is not None:
            return bool(ends(self.env, x))
        if not hasattr(self.env, "is_healthy"):
            return False
        self._set(x)
        return bool(not self.env.is_healthy and getattr(self.env, "_terminate_when_unhealthy", True))

    def observe(self, X: np.ndarray) -> np.ndarray:
        with _lock, self._without_log():
            return np.stack([self._observation(x) for x in X])

    def _advance(self, X: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next states, and the rewards."""
        key = (X.dtype.str, X.tobytes(), U.tobytes())
        with _lock:
            if key not in self.memo:
                following, rewards = self.advance_rows(X, U) if self.pool is None else self._advance_apart(self.pool, X, U)
                while len(self.memo) >= KEPT:
                    del self.memo[next(iter(self.memo))]
                self.memo[key] = following, rewards
            return self.memo[key]

    def advance_rows(self, X: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        following, rewards = np.empty_like(X), np.empty(len(X))
        with self._without_log():
            for i, (x, u) in enumerate(zip(X, U, strict=True)):
                following[i], rewards[i] = self._advance_one(x, u)
        return following, rewards

    def _advance_apart(self, key: tuple[str, bool, int], X: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        name, knows_its_end, processes = key
        if key not in _pools:
            opened = {"mp_context": multiprocessing.get_context("spawn"), "initializer": _open, "initargs": (name, knows_its_end)}
            _pools[key] = ProcessPoolExecutor(processes, **opened)
        shares = max(min(processes, len(X)), 1)
        try:
            following, rewards = zip(
                *_pools[key].map(_advance_in_process, np.array_split(X, shares), np.array_split(U, shares)), strict=True
            )
        except BrokenProcessPool:
            del _pools[key]  # so that the next call begins anew
            raise OffspanError(
                f"from_gymnasium: a process with an environment {name!r} of its own has ended. A script that asks for `processes` must "
                'start its work under `if __name__ == "__main__":`, and register environments of its own above that line.'
            ) from None
        return np.concatenate(following), np.concatenate(rewards)

    def _advance_one(self, x: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, float]:
        self._set(x)
        action: Any = self.env.action_space.start + np.argmax(u) if self.is_discrete else u
        _, reward, terminated, _, _ = self.env.step(action)
        following = self._state().astype(x.dtype)
        if terminated:
            self.env.reset()  # some keep in mind that they have ended
            if not self.knows_its_end and not self._has_ended(following.astype(float)):
                raise OffspanError(
                    f"from_gymnasium: {type(self.env).__name__} ended at {following.tolist()}, and which states are its end is not known "
                    "here; pass `done`, a function of a batch of states (b, n) that says it."
                )
        return following, float(reward)

    def _set(self, x: np.ndarray) -> None:
        if self.is_mujoco:
            self.mujoco.mj_resetData(self.env.model, self.env.data)  # without it, a warm start comes from the step before
            self.env.set_state(x[: self.nq].astype(float), x[self.nq :].astype(float))
        else:
            self.env.state = x.astype(float)

    def _state(self) -> np.ndarray:
        return np.concatenate([self.env.data.qpos, self.env.data.qvel]) if self.is_mujoco else np.array(self.env.state, float)

    def _observation(self, x: np.ndarray) -> np.ndarray:
        self._set(x)
        show = next((getattr(self.env, name) for name in ("_get_obs", "_get_ob") if hasattr(self.env, name)), None)
        return np.asarray(x if show is None else show(), float)


_pools: dict[tuple[str, bool, int], ProcessPoolExecutor] = {}  # one for all problems of an environment
_of_process: list[_Environment] = []  # of a process of such a pool


def _open(name: str, knows_its_end: bool) -> None:
    _of_process.append(_Environment("from_gymnasium", name, knows_its_end=knows_its_end))


def _advance_in_process(X: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _of_process[0].advance_rows(X, U)
