"""python-control's systems as problems: linear ones, sampled where they are continuous, and nonlinear ones."""

from collections.abc import Callable
from typing import Any

import numpy as np

from offspan.errors import OffspanError, as_count, as_positive, extra
from offspan.problems.base import BlackBox
from offspan.problems.lqr import LQR


def from_control(
    system: Any,
    *,
    Q: Any = None,
    R: Any = None,
    stage_cost: Callable[..., Any] | None = None,
    horizon: int,
    dt: float | None = None,
    substeps: int = 4,
) -> Any:  # an LQR, or a BlackBox for a nonlinear system
    """x_{h+1} = A x_h + B u_h of a linear system, at cost xᵀQx + uᵀRu; a nonlinear one at cost `stage_cost(X, U)`  [beyond R24].

    A continuous system needs `dt`, the length of a time step: a linear one is sampled with the control held constant, a nonlinear one is
    integrated by `substeps` classical Runge–Kutta steps, control held. A discrete one has its own `dt`. A transfer function becomes one of
    its state-space forms. The output is not used: controllers see the state, and its labels name the coordinates. Q is I and R is 0 unless
    given. A nonlinear system becomes a `BlackBox`, whose stage cost is a NumPy function of batches (with Q or R: the quadratic one).

    >>> import control, numpy as np
    >>> from offspan.systems.control import from_control
    >>> mass = control.ss([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], np.eye(2), 0)  # continuous
    >>> from_control(mass, R=[[1.0]], horizon=50, dt=0.1).A.round(3).tolist()
    [[1.0, 0.1], [0.0, 1.0]]
    """
    where, control = "from_control", extra("control")
    if isinstance(system, control.TransferFunction):
        system = control.ss(system)
    if not isinstance(system, control.NonlinearIOSystem):  # which linear ones are, too
        raise OffspanError(
            f"{where}: `system` is a {type(system).__name__}, but must be a StateSpace, TransferFunction or NonlinearIOSystem of "
            "python-control."
        )
    n, m = system.nstates, system.ninputs
    if not n or not m:
        raise OffspanError(f"{where}: `system` has {n} states and {m} inputs; give it at least one of each (`states=`, `inputs=`).")
    step_length = _time_step(where, system, dt)
    labels = tuple(system.state_labels)
    if isinstance(system, control.StateSpace):
        if stage_cost is not None:
            raise OffspanError(f"{where}: `stage_cost` is given, but a linear system costs xᵀQx + uᵀRu; pass `Q` and `R`.")
        sampled = system if step_length is None else system.sample(step_length)
        return LQR(sampled.A, sampled.B, Q, R, horizon=horizon, coordinates=labels)
    if (stage_cost is None) == (Q is None and R is None):
        raise OffspanError(f"{where}: a nonlinear system needs either `stage_cost`, or `Q` and `R`.")
    dynamics, count = system.dynamics, as_count(where, "substeps", substeps, least=1)
    somewhere = np.linspace(0.1, 0.9, n), np.linspace(0.2, 0.8, m)
    if not np.array_equal(dynamics(0.0, *somewhere), dynamics(0.7, *somewhere), equal_nan=True):
        raise OffspanError(f"{where}: `system` depends on time, but a problem's step depends on state and control alone.")
    each = lambda X, U: np.stack([np.asarray(dynamics(0.0, x, u), float) for x, u in zip(X, U, strict=True)])  # noqa: E731
    step = each if step_length is None else _integrated(each, step_length, count)
    cost = stage_cost or _quadratic(where, n, m, Q, R)
    return BlackBox(step, cost, state_dim=n, control_dim=m, horizon=horizon, coordinates=labels)


def _time_step(where: str, system: Any, dt: float | None) -> float | None:
    """What a continuous system is sampled with; None for a discrete one."""
    if system.isdtime(strict=True):
        own = system.dt
        if dt is not None and (own is True or not np.isclose(own, dt)):
            length = "of unspecified length" if own is True else f"of {own:g}"
            raise OffspanError(f"{where}: `dt` is {dt:g}, but the system is discrete, with time steps {length}; leave `dt` out.")
        return None
    if system.dt is None:
        raise OffspanError(f"{where}: `system` has no time base; make it with dt=0 (continuous), or with the length of its time steps.")
    if dt is None:
        raise OffspanError(
            f"{where}: `system` is continuous, so its matrices are not those of a time step; pass `dt`, the length of one, to sample it."
        )
    return as_positive(where, "dt", dt)


def _integrated(rate: Callable[..., np.ndarray], dt: float, substeps: int) -> Callable[..., np.ndarray]:
    h = dt / substeps

    def step(X, U):
        for _ in range(substeps):
            k1 = rate(X, U)
            k2 = rate(X + h / 2 * k1, U)
            k3 = rate(X + h / 2 * k2, U)
            k4 = rate(X + h * k3, U)
            X = X + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return X

    return step


def _quadratic(where: str, n: int, m: int, Q: Any, R: Any) -> Callable[..., np.ndarray]:
    weights = [np.eye(n) if Q is None else np.asarray(Q, float), np.zeros((m, m)) if R is None else np.asarray(R, float)]
    for name, weight, size in zip("QR", weights, (n, m), strict=True):
        if weight.shape != (size, size):
            raise OffspanError(f"{where}: `{name}` has shape {weight.shape}, but must be {size}×{size}.")
    return lambda X, U: np.sum((X @ weights[0]) * X, axis=1) + np.sum((U @ weights[1]) * U, axis=1)
