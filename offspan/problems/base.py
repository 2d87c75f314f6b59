"""What is controlled: how one state moves under one control, what that costs, and for how long."""

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from offspan import host
from offspan.errors import Bounds, OffspanError, as_bounds, as_count, as_floats, as_positive, check_not_frozen


class Problem(eqx.Module):
    """x_{h+1} = step(x_h, u_h), with cost J(π; X) = cost_scale · mean_{x_0∈X} Σ_{h=0}^{H} stage_cost(x_h, u_h)  [R24, eq:general_cost].

    Both methods are written for one state `(n,)` and one control `(m,)`, and are checked where a problem is made. `control_bounds` is
    None, or the pair (low, high) that controls are meant to stay in: `Bounded(net, *problem.control_bounds)` enforces them, `rollout` does
    not.

    >>> import math, jax.numpy as jnp, offspan
    >>> problem, no_torque = offspan.Pendulum(horizon=4), offspan.Linear([[0.0, 0.0]])
    >>> J = offspan.cost(problem, no_torque, jnp.zeros((1, 2)))  # hanging, it stays π away from upright at h = 0..4
    >>> round(float(J), 6), round(1 / 4 * 5 * math.pi**2, 6)
    (12.337006, 12.337006)
    """

    state_dim: int = eqx.field(static=True)
    control_dim: int = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    cost_scale: float = eqx.field(static=True)
    control_bounds: Bounds | None = eqx.field(static=True)

    def __check_init__(self):
        where = type(self).__name__
        if type(self).__module__.startswith("offspan."):  # these check themselves, and LQRs are made by the thousand
            return
        for name in ("state_dim", "control_dim", "horizon"):
            as_count(where, name, getattr(self, name), least=1)
        as_positive(where, "cost_scale", self.cost_scale)
        _check_traced(where, self, {"step": self.step, "stage_cost": self.stage_cost})

    @abc.abstractmethod
    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        """The next state."""

    @abc.abstractmethod
    def stage_cost(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, ""]:
        """What one time step costs."""

    def done(self, x: Float[Array, "n"]) -> Bool[Array, ""] | None:
        """Whether a trajectory ends at x, where `step` stands still; None for a problem in which none ends before time H."""
        return None

    @property
    def coordinates(self) -> tuple[str, ...]:
        """What each number of a state is called, with its unit."""
        return tuple(f"x[{d}]" for d in range(self.state_dim))


def as_problem(where: str, problem: Any) -> Problem:
    if not isinstance(problem, Problem):
        raise OffspanError(
            f"{where}: `problem` is a {type(problem).__name__}, but must be a Problem, such as LQR(A, horizon=5), Pendulum() or "
            "FunctionProblem(…)."
        )
    return problem


def as_floating(value: Any, dtype: Any) -> Array:
    """Whole numbers and truth values, as a `jnp.where` may return them, in the type of the state; other numbers as they are."""
    value = jnp.asarray(value)
    return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(dtype)


def _check_traced(where: str, problem: Problem, functions: dict[str, Callable[..., Any]]) -> None:
    """Whether jax can trace these functions of a problem, and what they return."""
    x, u = (jax.ShapeDtypeStruct((size,), jnp.result_type(float)) for size in (problem.state_dim, problem.control_dim))
    for name, function in functions.items():
        arguments, shape = {"step": ((x, u), x.shape), "stage_cost": ((x, u), ()), "done": ((x,), ())}[name]
        given = " and ".join(f"a {one} of shape {value.shape}" for one, value in zip(("state", "control"), arguments, strict=False))
        try:
            returned = jax.eval_shape(lambda *given, function=function: function(*given), *arguments)
        except OffspanError:
            raise
        except (TypeError, ValueError, jax.errors.NonConcreteBooleanIndexError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            if not isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
                raise OffspanError(f"{where}: `{name}` fails for {given} ({reason}).") from error
            raise OffspanError(
                f"{where}: `{name}` cannot be traced by jax for {given}; use jax.numpy in place of numpy, jnp.where in place of `if`, and "
                f"x[i], u[i] for numbers, or use BlackBox for functions of NumPy arrays ({reason})."
            ) from error
        if getattr(returned, "shape", None) != shape:
            what = f"shape {returned.shape}" if hasattr(returned, "shape") else f"a {type(returned).__name__}"
            raise OffspanError(f"{where}: `{name}` returned {what} for {given}, but must return shape {shape}.")
        if jnp.issubdtype(returned.dtype, jnp.complexfloating):
            raise OffspanError(
                f"{where}: `{name}` returned complex numbers ({returned.dtype}), but states and costs are real; make real and "
                "imaginary parts separate coordinates."
            )


def as_names(where: str, coordinates: Sequence[str] | None, state_dim: int) -> tuple[str, ...] | None:
    if coordinates is None:
        return None
    names = None if isinstance(coordinates, str) or not isinstance(coordinates, Iterable) else tuple(map(str, coordinates))
    if names is None or len(names) != state_dim:
        raise OffspanError(
            f"{where}: `coordinates` is {coordinates!r}, but must be a list of {state_dim} names, one for each entry of a state."
        )
    return names


class _OfFunctions(Problem):
    """What problems made of functions have in common: `done`, and the names of coordinates."""

    step_function: Callable[..., Any]
    cost_function: Callable[..., Any]
    done_function: Callable[..., Any] | None
    done_cost: float | None = eqx.field(static=True)
    names: tuple[str, ...] | None = eqx.field(static=True)

    def _set(
        self,
        step: Callable[..., Any],
        stage_cost: Callable[..., Any],
        state_dim: int,
        control_dim: int,
        horizon: int,
        cost_scale: float,
        control_bounds: tuple[Any, Any] | None,
        done: Callable[..., Any] | None,
        done_cost: float | None,
        coordinates: Sequence[str] | None,
    ) -> None:
        """Checks and stores the arguments of both kinds; each lists them in its own `__init__`, so that `help` and errors show them."""
        where = type(self).__name__
        self.state_dim = as_count(where, "state_dim", state_dim, least=1)
        self.control_dim = as_count(where, "control_dim", control_dim, least=1)
        self.horizon = as_count(where, "horizon", horizon, least=1)
        self.cost_scale = as_positive(where, "cost_scale", cost_scale)
        self.control_bounds = None if control_bounds is None else as_bounds(where, control_bounds, self.control_dim)
        for name, function in {"step": step, "stage_cost": stage_cost, "done": done}.items():
            if not callable(function) and not (name == "done" and function is None):
                arguments = "one state" if name == "done" else "one state and one control"
                raise OffspanError(f"{where}: `{name}` is {function!r}, but must be a function of {arguments}.")
        if done is None and done_cost is not None:
            raise OffspanError(f"{where}: `done_cost` is {done_cost!r}, but there is no `done`, so that no trajectory ends early.")
        self.done_cost = None if done_cost is None else float(as_floats(where, "done_cost", done_cost, shape=(), meaning="one number"))
        self.names = as_names(where, coordinates, self.state_dim)
        self.step_function, self.cost_function = self._stored(step), self._stored(stage_cost)
        self.done_function = None if done is None else self._stored(done)

    @staticmethod
    @abc.abstractmethod
    def _stored(function: Callable[..., Any]) -> Callable[..., Any]:
        """A function as a part of the pytree."""

    @abc.abstractmethod
    def _value(self, name: str, shape: tuple[int, ...], *arguments: Array) -> Array:
        """One of the three functions, by its name, at one state."""

    def step(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, "n"]:
        ended = self.done(x)
        if ended is None:
            return self._value("step", (self.state_dim,), x, u)
        x_moving, u_moving = _cut_where(ended, x, u)
        return jnp.where(ended, x, self._value("step", (self.state_dim,), x_moving, u_moving))

    def stage_cost(self, x: Float[Array, "n"], u: Float[Array, "m"]) -> Float[Array, ""]:
        if self.done_cost is None or (ended := self.done(x)) is None:
            return self._value("stage_cost", (), x, u)
        x_moving, u_moving = _cut_where(ended, x, u)
        c = self._value("stage_cost", (), x_moving, u_moving)
        return jnp.where(ended, jnp.asarray(self.done_cost, jnp.result_type(c, x.dtype)), c)

    def done(self, x: Float[Array, "n"]) -> Bool[Array, ""] | None:
        return None if self.done_function is None else self._value("done", (), x).astype(bool)

    @property
    def coordinates(self) -> tuple[str, ...]:
        return super().coordinates if self.names is None else self.names


def _cut_where(ended: Bool[Array, ""], *values: Array) -> list[Array]:
    """The same values, with derivatives stopped where a trajectory has ended: those of a step from there may be NaN."""
    return [jnp.where(ended, jax.lax.stop_gradient(value), value) for value in values]


class FunctionProblem(_OfFunctions):
    """x_{h+1} = step(x_h, u_h) at cost stage_cost(x_h, u_h), two functions of one state and one control: your own dynamics  [beyond R24].

    The functions may be equinox modules (a learned model, say); what they hold is then part of the problem's pytree. What a plain
    function captures (globals, variables around it) is a constant of the program that its first call compiles: what will change belongs
    into such a module. With `done`, a function of one state, a trajectory ends where it is true: the state stays constant from then on,
    and each remaining time step costs `done_cost`, by default the stage cost there. `coordinates` names the numbers of a state, such as
    ("θ [rad]", "dθ/dt [rad/s]").

    >>> import jax.numpy as jnp, offspan
    >>> cart = offspan.FunctionProblem(
    ...     step=lambda x, u: x + 0.25 * jnp.array([x[1], u[0]]),
    ...     stage_cost=lambda x, u: x @ x,
    ...     state_dim=2, control_dim=1, horizon=50,
    ... )
    >>> cart.step(jnp.array([0.0, 1.0]), jnp.array([2.0])).tolist()
    [0.25, 1.5]
    """

    def __init__(
        self,
        step: Callable[..., Any],
        stage_cost: Callable[..., Any],
        *,
        state_dim: int,
        control_dim: int,
        horizon: int,
        cost_scale: float = 1.0,
        control_bounds: tuple[Any, Any] | None = None,
        done: Callable[..., Any] | None = None,
        done_cost: float | None = None,
        coordinates: Sequence[str] | None = None,
    ):
        self._set(step, stage_cost, state_dim, control_dim, horizon, cost_scale, control_bounds, done, done_cost, coordinates)
        given = {"step": step, "stage_cost": stage_cost, "done": done}
        functions = {name: function for name, function in given.items() if function is not None}
        for name, function in functions.items():
            check_not_frozen("FunctionProblem", f"`{name}`", function)
        _check_traced("FunctionProblem", self, functions)

    @staticmethod
    def _stored(function: Callable[..., Any]) -> Callable[..., Any]:
        """A plain function inside a Partial is part of the tree's structure, so that a problem can be an argument of jax.jit."""
        return function if isinstance(function, eqx.Module) else jax.tree_util.Partial(function)  # pyright: ignore[reportReturnType]

    def _function(self, name: str) -> Callable[..., Any]:
        function = {"step": self.step_function, "stage_cost": self.cost_function, "done": self.done_function}[name]
        assert function is not None  # `done` asks first
        return function

    def _value(self, name: str, shape: tuple[int, ...], *arguments: Array) -> Array:
        return as_floating(self._function(name)(*arguments), arguments[0].dtype)


class BlackBox(_OfFunctions):
    """x_{h+1} = step(x_h, u_h) at cost stage_cost(x_h, u_h), NumPy functions of batches: any simulator, without derivatives  [beyond R24].

    `step(X, U)` takes states (b, n) and controls (b, m) and returns (b, n), `stage_cost(X, U)` returns (b,), `done(X)` a truth value for
    each. They must be functions of their arguments alone, as they are called in any order; an exception in one of them is raised as
    it is. Whatever needs no derivative takes such a problem; to train, `gradient=TwoPoint(…)` or `Reinforce(…)`. `done`, `done_cost`
    and `coordinates` are those of `FunctionProblem`.

    >>> import numpy as np, offspan
    >>> box = offspan.BlackBox(
    ...     step=lambda X, U: X + 0.25 * np.stack([X[:, 1], U[:, 0]], axis=1),
    ...     stage_cost=lambda X, U: np.sum(X**2, axis=1),
    ...     state_dim=2, control_dim=1, horizon=2,
    ... )
    >>> float(offspan.cost(box, offspan.Linear([[0.0, -1.0]]), np.array([[0.0, 1.0]])))  # 1 + (0.25² + 0.75²) + (0.4375² + 0.5625²)
    2.1328125
    """

    on_host: ClassVar[bool] = True

    def __init__(
        self,
        step: Callable[..., Any],
        stage_cost: Callable[..., Any],
        *,
        state_dim: int,
        control_dim: int,
        horizon: int,
        cost_scale: float = 1.0,
        control_bounds: tuple[Any, Any] | None = None,
        done: Callable[..., Any] | None = None,
        done_cost: float | None = None,
        coordinates: Sequence[str] | None = None,
    ):
        self._set(step, stage_cost, state_dim, control_dim, horizon, cost_scale, control_bounds, done, done_cost, coordinates)

    @staticmethod
    def _stored(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.tree_util.Partial(function)  # pyright: ignore[reportReturnType]

    def _value(self, name: str, shape: tuple[int, ...], *arguments: Array) -> Array:
        function: Any = {"step": self.step_function, "stage_cost": self.cost_function, "done": self.done_function}[name]
        return host.call(f"BlackBox: `{name}`", function.func, shape, *arguments)
