"""Policy gradient for any problem and any controller: differentiate the cost through the rollout, let an optax optimiser step."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Float

from offspan.errors import OffspanError, as_count, as_floats, as_states
from offspan.problems.base import Problem
from offspan.rollout import Controller
from offspan.training.batch import Batch, BatchState, Loss, Run, Settings, run_batch
from offspan.training.loop import CHUNK, Never, StoppingRule


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

    `loss(problem, controller, x0s)` takes the place of J as what is descended; `Run.cost` and the stopping rule see J(π; S) all the same. A
    loss that has computed J on its way may return the pair (value, J), which saves computing it again. `progress` hears the updates made.
    The program is compiled once for each optimiser value, so make that once when you train in a loop.

    >>> import jax.numpy as jnp, optax, offspan
    >>> run = offspan.train(
    ...     offspan.shift(3, horizon=3), offspan.Linear(jnp.zeros((3, 3))), offspan.basis(3, 1),
    ...     optimizer=optax.sgd(0.1), iterations=200, stop=offspan.CostBelow(1.001),
    ... )
    >>> run.status
    <Status.converged: 'converged'>
    """
    x0s = as_states("train", "x0s", x0s, problem.state_dim)[None]
    settings = _checked("train", problem, [controller], x0s, optimizer, loss, stop)
    iterations = as_count("train", "iterations", iterations, least=0)

    def report(made, _):
        if progress is not None:
            progress(int(made[0]))

    batch = run_batch("train", settings, [controller], x0s, iterations=iterations, record_every=1, resume=None, on_chunk=report)
    return batch.run(0)


def train_batch(
    problem: Problem,
    controllers: Sequence[Controller],
    x0s: Any,
    *,
    optimizer: optax.GradientTransformation,
    iterations: int,
    loss: Loss | None = None,
    stop: StoppingRule | None = None,
    record_every: int = 100,
    resume: BatchState | None = None,
    on_chunk: Callable[[BatchState], Any] | None = None,
) -> Batch:
    """w_r ← w_r − η ∇J(π_{w_r}; S_r) for every run r at once, each as in `train`  [R24, eq:policy_grad].

    The controllers differ in their weights alone; they have the same seen states (s, n), or each its own (r, s, n).

    A run that diverges or stops early changes no bit of the others. `on_chunk` sees the batch after each chunk of iterations, and `resume`
    takes up such a state again, to the same bits. An optimiser that draws random numbers draws the same ones for every run.
    `Batch.cost` is of controllers before an update, and NaN after a run's end: for the result of run r, ask `cost(problem,
    batch.controllers[r], x0s)`.

    >>> import optax, offspan
    >>> problem, starts, seen = offspan.identity(1, horizon=1), [offspan.Linear([[0.0]])] * 2, [[[1.0]], [[2.0]]]
    >>> batch = offspan.train_batch(problem, starts, seen, optimizer=optax.sgd(0.125), iterations=1)
    >>> [float(pi.K[0, 0]) for pi in batch.controllers]  # −η 2x², as J(K; x) = x² (1 + (1 + K)²)
    [-0.25, -1.0]
    """
    where = "train_batch"
    if not isinstance(controllers, Sequence) or not controllers or not _differ_in_weights_alone(controllers):
        raise OffspanError(f"{where}: `controllers` must be a list of controllers that differ in the values of their weights alone.")
    record_every = as_count(where, "record_every", record_every, least=1)
    if CHUNK % record_every:
        raise OffspanError(f"{where}: `record_every` is {record_every}, but must divide {CHUNK}, the iterations of one compiled chunk.")
    n = problem.state_dim
    try:
        given = jnp.asarray(x0s)
    except (TypeError, ValueError):
        given = None
    if given is not None and given.ndim == 3:
        x0s = as_floats(where, "x0s", x0s, shape=(len(controllers), None, n), meaning=f"one set of states (s, {n}) for each run")
    else:
        x0s = jnp.repeat(as_states(where, "x0s", x0s, n)[None], len(controllers), axis=0)
    settings = _checked(where, problem, controllers, x0s, optimizer, loss, stop)
    iterations = as_count(where, "iterations", iterations, least=0)

    def report(_, state):
        if on_chunk is not None:
            on_chunk(state())

    return run_batch(where, settings, controllers, x0s, iterations=iterations, record_every=record_every, resume=resume, on_chunk=report)


def _differ_in_weights_alone(controllers: Sequence[Controller]) -> bool:
    first, *others = [eqx.partition(controller, eqx.is_inexact_array) for controller in controllers]
    shapes = lambda weights: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(weights)]  # noqa: E731
    return all(
        jax.tree.structure(weights) == jax.tree.structure(first[0])
        and shapes(weights) == shapes(first[0])
        and bool(eqx.tree_equal(rest, first[1]))
        for weights, rest in others
    )


def _checked(
    where: str,
    problem: Problem,
    controllers: Sequence[Controller],
    x0s: Float[Array, "r s n"],
    optimizer: optax.GradientTransformation,
    loss: Loss | None,
    stop: StoppingRule | None,
) -> Settings:
    stop = Never() if stop is None else stop
    if not isinstance(stop, StoppingRule):
        raise OffspanError(f"{where}: `stop` is {stop!r}, but must be a stopping rule, such as NoImprovement() or CostBelow(0.1).")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise OffspanError(f"{where}: `optimizer` is {optimizer!r}, but must be an optax optimiser, such as optax.sgd(1e-3).")
    if not jax.tree.leaves(eqx.filter(controllers[0], eqx.is_inexact_array)):
        raise OffspanError(
            f"{where}: the controller (a {type(controllers[0]).__name__}) has no floating-point arrays to train; "
            "pass a Linear, an MLP or another pytree that holds its weights."
        )
    if loss is not None:
        if not callable(loss):
            raise OffspanError(f"{where}: `loss` is {loss!r}, but must be a function of problem, controller and seen states.")
        value = eqx.filter_eval_shape(loss, problem, controllers[0], x0s[0])
        parts = value if isinstance(value, tuple) else (value, value)
        if [getattr(part, "shape", None) for part in parts] != [(), ()] or not all(
            jnp.issubdtype(part.dtype, jnp.floating) for part in parts
        ):
            raise OffspanError(f"{where}: `loss` must return one real number, or a pair of that and J(π; S), but returned {value}.")
    return Settings(problem, optimizer, loss, stop)
