"""Policy gradient for any problem and any controller: differentiate the cost through the rollout, let an optax optimiser step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float

from offspan.checks import as_count, as_states
from offspan.problems.base import Problem
from offspan.rollout import Controller, cost
from offspan.training.loop import LoopState, Never, Status, StoppingRule, advance, run_chunks

Loss = Callable[[Problem, Controller, Array], Array]


class Run(NamedTuple):
    """A finished training run; `iterations` updates were made, and a diverged run failed at the iteration of that number."""

    controller: Any
    cost: np.ndarray
    status: Status
    iterations: int


def train(
    problem: Problem,
    controller: Controller,
    x0s: Float[ArrayLike, "s n"],
    *,
    optimizer: optax.GradientTransformation,
    iterations: int,
    loss: Loss | None = None,
    stop: StoppingRule | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Run:
    """w ← w − η ∇J(π_w; S), with the optimiser's own rule for η∇J  [R24, eq:policy_grad].

    `loss(problem, controller, x0s)` takes the place of J as what is descended; `Run.cost` and the stopping rule see J(π; S) all the same.
    The program is compiled once for each optimiser value, so make that once when you train in a loop.

    >>> import jax, offspan
    >>> run = train(
    ...     offspan.shift(3, horizon=3), offspan.Linear(jax.numpy.zeros((3, 3))), offspan.basis(3, 1),
    ...     optimizer=optax.sgd(0.1), iterations=200, stop=offspan.CostBelow(1.001),
    ... )
    >>> run.status
    <Status.converged: 'converged'>
    """
    x0s = as_states("train", "x0s", x0s, problem.state_dim)
    iterations = as_count("train", "iterations", iterations, least=0)
    stop = Never() if stop is None else stop
    if not isinstance(stop, StoppingRule):
        raise ValueError(f"train: `stop` is {stop!r}, but must be a stopping rule, such as NoImprovement() or CostBelow(0.1).")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(f"train: `optimizer` is {optimizer!r}, but must be an optax optimiser, such as optax.sgd(1e-3).")
    weights, structure = eqx.partition(controller, eqx.is_inexact_array)
    if not jax.tree.leaves(weights):
        raise ValueError(
            f"train: the controller (a {type(controller).__name__}) has no floating-point arrays to train; "
            "pass a Linear, an MLP or another pytree that holds its weights."
        )
    if loss is not None and getattr(value := eqx.filter_eval_shape(loss, problem, controller, x0s), "shape", None) != ():
        raise ValueError(f"train: `loss` must return one number, but returned {value}.")
    state = LoopState.start(weights, optimizer.init(weights), stop)
    state, costs, status = run_chunks(
        lambda state, count: _advance(problem, structure, x0s, optimizer, loss, stop, state, np.asarray(count)), state, iterations, progress
    )
    weights = state.controller
    if status is not Status.diverged:
        weights = stop.result(state.memory, cost(problem, eqx.combine(weights, structure), x0s), weights)
    return Run(eqx.combine(weights, structure), costs, status, int(state.iteration))


@eqx.filter_jit
def _advance(problem, structure, x0s, optimizer, loss, stop, state, count):
    def objective(weights):
        return (cost if loss is None else loss)(problem, eqx.combine(weights, structure), x0s)

    def update(weights, optimizer_state):
        value, gradient = eqx.filter_value_and_grad(objective)(weights)
        J = value if loss is None else cost(problem, eqx.combine(weights, structure), x0s)
        # Line searches and the like want more than the gradient; other optimisers leave it aside.
        extra = {"value": value, "grad": gradient, "value_fn": objective}
        updates, optimizer_state = optax.with_extra_args_support(optimizer).update(gradient, optimizer_state, weights, **extra)
        return J, eqx.apply_updates(weights, updates), optimizer_state

    return advance(update, stop, state, count)
