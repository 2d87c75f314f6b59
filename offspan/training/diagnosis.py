"""Why a run diverged: which iteration, which time step, how the step Jacobians multiply along the trajectory, and what to try."""

import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from offspan.errors import OffspanError, as_states
from offspan.host import is_hosted
from offspan.problems.base import Problem, as_floating, as_problem
from offspan.problems.variants import without_noise
from offspan.rollout import cost, rollout
from offspan.training.batch import Run
from offspan.training.estimators import Loss
from offspan.training.stopping import Status

EXPLOSION = 100.0  # a cost this many times the least one before it has exploded
FAR = 10.0  # a run that ends at this many times its least cost has lost what it learned
NEGLIGIBLE = 1e-3  # of the cost at the start
ELASTIC = 0.1  # ‖∇J‖·‖w‖ / J above which a small change of the weights w should still lower J

ADVICE = {
    "state": "lower the learning rate, clip the gradient (optax.chain(optax.clip_by_global_norm(1.0), …)), keep the controls in bounds "
    "(offspan.Bounded), or begin with a shorter horizon",
    "cost": "check what `stage_cost` does with large states; else lower the learning rate or clip the gradient "
    "(optax.chain(optax.clip_by_global_norm(1.0), …))",
    "gradient": "if the Jacobians are large, clip the gradient (optax.chain(optax.clip_by_global_norm(1.0), …)), shorten the horizon or "
    "use float64; if they are not finite, check for a square root, a norm or a division at zero in `step`, `stage_cost` or the controller",
    "loss": "check what the loss adds to J: its value or its gradient overflows where J does not",
    "progress": "change the learning rate, clip the gradient's norm (optax.chain(optax.clip_by_global_norm(1.0), …), or "
    "train_lqr(…, clip=1.0)), begin with short horizons (train(…, horizons=(10, 50, …)), ending with the problem's), or descend a smoothed "
    "cost (gradient=TwoPoint(radius=0.03, directions=8), key=jax.random.key(0))",
    "update": "lower the learning rate, or clip the gradient before the optimiser sees it",
    "nothing": "nothing",
}


class Diagnosis(NamedTuple):
    """What was not finite first, at the last finite controller of a run, and how the trajectory there grows; `print` it.

    `what` is "state", "cost" (of one time step, or their sum), "gradient", "loss" (J and its gradient are finite, but not those of the
    loss), "update" (where the gradient is finite, but what the optimiser makes of it is not), "progress" (all is finite, but the run is
    stuck: it ended far above its least cost, or its second half gained nothing although ‖∇J‖ is not small), or "nothing".
    Along the trajectory from `x0`, `jacobian_norms[h]` = ‖∂x_h/∂x_0‖ and `costate_norms[h]` = ‖∂J/∂x_h‖.

    >>> import optax, offspan
    >>> problem, one = offspan.identity(1, horizon=2), offspan.basis(1)
    >>> run = offspan.train(problem, offspan.Linear([[-0.5]]), one, optimizer=optax.sgd(0.1), iterations=0)
    >>> diagnosis = offspan.diagnose(problem, run, one)
    >>> diagnosis.jacobian_norms.tolist(), diagnosis.costate_norms.tolist()  # J = (1 + 1/4 + 1/16) x_0²
    ([1.0, 0.5, 0.25], [2.625, 1.25, 0.5])
    """

    what: str
    iteration: int  # the update that failed
    explosion: int  # the first recorded iteration whose cost exploded; `iteration` where none did
    time_step: int  # of that state, cost or costate; of the largest one where all are finite
    x0: int  # the index of the seen state whose trajectory that was
    state_norms: np.ndarray  # (H+1,): ‖x_h‖ along it
    jacobian_norms: np.ndarray  # (H+1,): ‖∂x_h/∂x_0‖, the product of the step Jacobians
    costate_norms: np.ndarray  # (H+1,): ‖∂J/∂x_h‖, the same products backwards

    @property
    def advice(self) -> str:
        if self.iteration == 0 and self.what in ("state", "cost", "gradient"):  # without an update: no learning rate is at fault
            return "begin with another controller, from states nearer to where it should go, or with a shorter horizon or time step"
        return ADVICE[self.what]

    def __str__(self) -> str:
        if self.what == "nothing":
            head = f"Nothing diverged: after {self.iteration:,} iterations all numbers are finite."
        elif self.what == "progress":
            head = (
                f"The run is stuck: after {self.iteration:,} iterations all numbers are finite, but the cost is far above its least value, "
                "or did not fall in the second half of the run, although its gradient is not small."
            )
        else:
            since = f" (the cost exploded first at iteration {self.explosion:,})" if self.explosion < self.iteration else ""
            head = (
                f"The run diverged at iteration {self.iteration:,}{since}: the {self.what} was not finite, "
                f"at time step {self.time_step} from seen state {self.x0}."
            )
        growth = ", ".join(f"{name} {_reach(norms)}" for name, norms in zip(("‖x_h‖", "‖∂x_h/∂x_0‖", "‖∂J/∂x_h‖"), self[5:], strict=True))
        which = f"the trajectory from seen state {self.x0}" if self.what in ("nothing", "progress") else "that trajectory"
        return f"{head}\nAlong {which} {growth}." + ("" if self.what == "nothing" else f"\nTry: {self.advice}.")


def diagnose(problem: Problem, run: Run, x0s: Any, *, loss: Loss | None = None) -> Diagnosis:
    """Rolls out the last finite controller of `run` once more, and finds the first number that is not finite.

    States and costs are searched forwards in time, costates λ_h = ∂J/∂x_h backwards: in the order in which they are computed. `loss` is the
    one that the run was trained with, if any. A `Noisy` problem is rolled out without its noise.

    >>> import optax, offspan
    >>> problem, one = offspan.identity(1, horizon=2), offspan.basis(1)
    >>> run = offspan.train(problem, offspan.Linear([[0.0]]), one, optimizer=optax.sgd(10.0), iterations=100)
    >>> diagnosis = offspan.diagnose(problem, run, one)  # x_2 = (1 + K)² overflows
    >>> diagnosis.what, diagnosis.time_step
    ('state', 2)
    """
    x0s = as_states("diagnose", "x0s", x0s, as_problem("diagnose", problem).state_dim)
    if not isinstance(run, Run):
        raise OffspanError(
            f"diagnose: `run` is a {type(run).__name__}, but must be what `train` or `train_lqr` returned, or `batch.run(r)` of a batch."
        )
    problem, controller = without_noise(problem), run.controller
    X, C, jacobians, cost_gradients = map(np.asarray, _along_trajectories(problem, controller, x0s))
    with np.errstate(all="ignore"):
        products, costates = _forwards(jacobians), _backwards(jacobians, problem.cost_scale / len(X) * cost_gradients)
        broken_states, broken_costs, broken_costates = (
            np.logical_not(np.isfinite(values).all(axis=2)) for values in (X, C[:, :, None], costates)
        )
        if broken_states.any():
            what, (time_step, x0) = "state", _first(broken_states)
        elif broken_costs.any():
            what, (time_step, x0) = "cost", _first(broken_costs)
        elif broken_costates.any():
            steps_before, x0 = _first(broken_costates[:, ::-1])
            what, time_step = "gradient", X.shape[1] - 1 - steps_before
        else:
            J, slope = _value_and_elasticity(cost, problem, controller, x0s)
            value, slope_of_value = (J, slope) if loss is None else _value_and_elasticity(loss, problem, controller, x0s)
            largest = _lengths(costates) if np.isfinite(J) else C
            x0, time_step = map(int, np.unravel_index(np.argmax(largest), largest.shape))
            if not np.isfinite([J, slope]).all():
                what = "gradient" if np.isfinite(J) else "cost"
            elif not np.isfinite([value, slope_of_value]).all():
                what = "loss"
            elif run.status is Status.diverged:
                what = "update"
            else:
                what = "progress" if _is_stuck(run, slope_of_value) else "nothing"
        growth = np.array([_spectral_norm(product) for product in products[x0]])
        return Diagnosis(what, run.iterations, _explosion(run), time_step, x0, _lengths(X[x0]), growth, _lengths(costates[x0]))


def warn_if_stuck(where: str, problem: Problem, run: Run, x0s: Any, *, exact: bool = True, noisy: bool = False) -> None:
    """`exact` says whether what was descended is J itself: elsewhere its gradient need not vanish at the end. Costs that were recorded
    with noise say nothing of what was lost."""
    lost, idle = _by_records(run)
    lost &= not noisy
    if run.iterations < 100 or not (lost or (idle and exact and _value_and_elasticity(cost, problem, run.controller, x0s)[1] > ELASTIC)):
        return
    reason = "the cost ended far above its lowest value" if lost else "the cost no longer falls, although its gradient is not small"
    advice = (
        "change the learning rate or the radius" if is_hosted(problem) else "`print(offspan.diagnose(problem, run, x0s))` says what to try"
    )
    warnings.warn(f"{where}: the run is finite, but stuck: {reason}; {advice}.", stacklevel=3)


def _is_stuck(run: Run, elasticity: float) -> bool:
    lost, idle = _by_records(run)
    return lost or (idle and elasticity > ELASTIC)


def _by_records(run: Run) -> tuple[bool, bool]:
    """Whether a run that was not stopped ended far above its least cost, and whether its second half gained nothing."""
    costs = run.cost[np.isfinite(run.cost) & (run.recorded >= run.since)]
    if run.status is not Status.finished or len(costs) < 2:
        return False, False
    first, second = np.split(costs, [len(costs) // 2])
    lost = costs[-1] > max(FAR * costs.min(), NEGLIGIBLE * costs[0])  # not where it rose again from next to nothing
    rounding = float(np.finfo(costs.dtype).eps) ** 1.5 * costs[0]  # what has fallen so far has converged
    return bool(lost), bool(second.min() > 0.99 * first.min() and costs[-1] > rounding)


@eqx.filter_jit
def _along_trajectories(problem, controller, x0s):
    """States and costs from each x_0, the Jacobians of the closed loop there, and the gradients of the stage cost."""

    def closed_loop(x):
        u = controller(x)
        return as_floating(problem.step(x, u), x.dtype), as_floating(problem.stage_cost(x, u), x.dtype)

    trajectories = jax.vmap(lambda x0: rollout(problem, controller, x0))(x0s)
    return trajectories.states, trajectories.costs, *jax.vmap(jax.vmap(jax.jacobian(closed_loop)))(trajectories.states)


def _value_and_elasticity(objective: Loss, problem: Problem, controller: Any, x0s: Any) -> tuple[float, float]:
    """The objective J, and ‖∇J‖·‖w‖ / |J| for the weights w; not finite where the gradient is not."""
    value, slope, weights = map(np.asarray, _value_and_slope(objective, problem, controller, x0s))
    if not np.isfinite(slope).all():
        return float(value), np.inf
    lengths = _lengths(np.stack([slope, weights]))
    return float(value), float(lengths[0] * lengths[1] / max(abs(float(value)), 1e-300))


@eqx.filter_jit
def _value_and_slope(objective, problem, controller, x0s):
    """J, ∇J and the weights, as vectors."""

    def value_of(controller):
        value = objective(problem, controller, x0s)
        return value[0] if isinstance(value, tuple) else value

    value, gradient = eqx.filter_value_and_grad(value_of)(controller)
    return value, *(ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0] for tree in (gradient, controller))


def _first(broken: np.ndarray) -> tuple[int, int]:
    """(time step, seen state) of the first true entry in time, of an array (s, H+1)."""
    time_step, x0 = np.argwhere(broken.T)[0]
    return int(time_step), int(x0)


def _reach(norms: np.ndarray) -> str:
    finite = norms[np.isfinite(norms)]
    largest = f"reaches {finite.max():.3g}" if len(finite) else "is nowhere finite"
    return largest if len(finite) in (0, len(norms)) else f"{largest} before it overflows"


def _forwards(jacobians: np.ndarray) -> np.ndarray:
    """∂x_h/∂x_0 for h = 0..H."""
    products = np.empty_like(jacobians)
    products[:, 0] = np.eye(jacobians.shape[-1])
    for h in range(1, jacobians.shape[1]):
        products[:, h] = jacobians[:, h - 1] @ products[:, h - 1]
    return products


def _backwards(jacobians: np.ndarray, cost_gradients: np.ndarray) -> np.ndarray:
    """λ_h = ∂c(x_h)/∂x_h + F_hᵀ λ_{h+1}, from λ_{H+1} = 0; x_{H+1} is no part of the problem."""
    costates = cost_gradients.copy()
    for h in range(jacobians.shape[1] - 2, -1, -1):
        costates[:, h] += np.einsum("sij,si->sj", jacobians[:, h], costates[:, h + 1])
    return costates


def _lengths(X: np.ndarray) -> np.ndarray:
    """Over the last axis, by numbers relative to the largest, whose squares do not overflow before the length does."""
    X = X.astype(float)
    largest = np.abs(X).max(axis=-1)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    return scale * np.linalg.norm(X / scale[..., None], axis=-1)


def _spectral_norm(M: np.ndarray) -> float:
    return float(np.linalg.norm(M.astype(float), 2)) if np.isfinite(M).all() else np.inf


def _explosion(run: Run) -> int:
    """The first recorded iteration whose cost is `EXPLOSION` times the least before it, or not finite."""
    cost, recorded = run.cost[run.recorded >= run.since], run.recorded[run.recorded >= run.since]
    cost = np.where(np.isfinite(cost), cost, np.inf)
    least = np.minimum.accumulate(np.append(np.inf, cost[:-1]))
    exploded = cost > EXPLOSION * np.maximum(least, 1e-9 * cost[:1].sum())  # after a cost of zero, not everything has exploded
    return int(recorded[np.argmax(exploded)]) if exploded.any() else run.iterations
