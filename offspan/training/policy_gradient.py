"""Policy gradient for any problem and any controller: differentiate the cost through the rollout, let an optax optimiser step.

A batch of runs is one program: each device advances its share of the runs side by side, and a run that has ended stands still until all
have. One run is a batch of one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, Float, PyTree

from offspan.checks import as_count, as_floats, as_states
from offspan.problems.base import Problem
from offspan.rollout import Controller, cost
from offspan.training.loop import CHUNK, DIVERGED, RUNNING, STATUS, LoopState, Never, Status, StoppingRule, advance

Loss = Callable[[Problem, Controller, Array], Array | tuple[Array, Array]]


class Run(NamedTuple):
    """A finished training run; `iterations` updates were made, and a diverged run failed at the iteration of that number."""

    controller: Any
    cost: np.ndarray  # (q,): J(π; S) before update `recorded[q]`
    status: Status
    iterations: int
    recorded: np.ndarray  # (q,)


class BatchState(NamedTuple):
    """A batch of runs r, `done` iterations in: all that a checkpoint has to hold. `done` is the last iteration once every run has ended."""

    cost: np.ndarray  # (r, q): J(π; S) before update `recorded[q]`, NaN where not made
    recorded: np.ndarray  # (q,)
    status: np.ndarray  # (r,), of Status
    iterations: np.ndarray  # (r,), updates made
    done: int
    carried: list[np.ndarray]  # the leaves of a LoopState with a leading axis of runs


class Batch(NamedTuple):
    """Finished training runs r. `cost[r, q]` is J(π; S) before update `recorded[q]`, NaN after the run's end."""

    controllers: list[Any]
    cost: np.ndarray  # (r, q)
    recorded: np.ndarray  # (q,)
    status: np.ndarray  # (r,), of Status
    iterations: np.ndarray  # (r,)

    def run(self, r: int) -> Run:
        """One of them."""
        made = int(self.iterations[r])
        # The iteration that ends a run has a cost, but makes no update.
        kept = self.recorded < made + (self.status[r] != Status.finished)
        return Run(self.controllers[r], self.cost[r, kept], Status(self.status[r]), made, self.recorded[kept])


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
    loss that has computed J on its way may return the pair (value, J), which saves computing it again.
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
    on_chunk = None if progress is None else lambda state: progress(int(state.iterations[0]))
    settings = {"optimizer": optimizer, "iterations": iterations, "loss": loss, "stop": stop, "on_chunk": on_chunk}
    return _train("train", problem, [controller], x0s[None], record_every=1, resume=None, **settings).run(0)


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
    """`train` for many controllers of one shape at once, from the same seen states (s, n) or each from its own (r, s, n).

    A run that diverges or stops early changes no bit of the others. `on_chunk` sees the batch after each chunk of iterations, and `resume`
    takes up such a state again, to the same bits.

    >>> import jax, offspan
    >>> starts = [offspan.MLP.init(key, 2, 1, width=8) for key in jax.random.split(jax.random.key(0), 3)]
    >>> batch = train_batch(offspan.Pendulum(horizon=5), starts, [[3.0, 0.0]], optimizer=optax.adam(1e-3), iterations=200)
    >>> batch.cost.shape, batch.status.tolist()
    ((3, 2), ['finished', 'finished', 'finished'])
    """
    where = "train_batch"
    controllers = list(controllers)
    if not controllers or len({_shape(controller) for controller in controllers}) > 1:
        raise ValueError(f"{where}: `controllers` must be a list of controllers of one kind and shape, with at least one.")
    record_every = as_count(where, "record_every", record_every, least=1)
    if CHUNK % record_every:
        raise ValueError(f"{where}: `record_every` is {record_every}, but must divide {CHUNK}, the iterations of one compiled chunk.")
    if np.ndim(x0s) == 3:
        n = problem.state_dim
        x0s = as_floats(where, "x0s", x0s, shape=(len(controllers), None, n), meaning=f"one set of states (s, {n}) for each run")
    else:
        x0s = jnp.repeat(as_states(where, "x0s", x0s, problem.state_dim)[None], len(controllers), axis=0)
    settings = {"optimizer": optimizer, "iterations": iterations, "loss": loss, "stop": stop, "on_chunk": on_chunk}
    return _train(where, problem, controllers, x0s, record_every=record_every, resume=resume, **settings)


def _train(where, problem, controllers, x0s, *, optimizer, iterations, loss, stop, record_every, resume, on_chunk) -> Batch:
    iterations = as_count(where, "iterations", iterations, least=0)
    stop = Never() if stop is None else stop
    if not isinstance(stop, StoppingRule):
        raise ValueError(f"{where}: `stop` is {stop!r}, but must be a stopping rule, such as NoImprovement() or CostBelow(0.1).")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(f"{where}: `optimizer` is {optimizer!r}, but must be an optax optimiser, such as optax.sgd(1e-3).")
    parts = [eqx.partition(controller, eqx.is_inexact_array) for controller in controllers]
    if not jax.tree.leaves(parts[0][0]):
        raise ValueError(
            f"{where}: the controller (a {type(controllers[0]).__name__}) has no floating-point arrays to train; "
            "pass a Linear, an MLP or another pytree that holds its weights."
        )
    if loss is not None:
        value = eqx.filter_eval_shape(loss, problem, controllers[0], x0s[0])
        if [getattr(part, "shape", None) for part in (value if isinstance(value, tuple) else (value, value))] != [(), ()]:
            raise ValueError(f"{where}: `loss` must return one number, or a pair of that and J(π; S), but returned {value}.")

    runs, structure = len(controllers), parts[0][1]
    weights = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(weights for weights, _ in parts))
    start = LoopState.start(weights, jax.vmap(optimizer.init)(weights), stop)
    state = (
        _beginning(start, runs, iterations, record_every) if resume is None else _taken_up(where, resume, start, iterations, record_every)
    )
    # Devices get equal shares; the last run fills them up.
    devices = jax.devices()[:runs]
    filled = np.minimum(np.arange(-(-runs // len(devices)) * len(devices)), runs - 1)
    mesh = Mesh(np.array(devices), ("runs",))
    loop = jax.tree.unflatten(jax.tree.structure(start), state.carried)
    loop, x0s = jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf)[filled], (loop, x0s)), NamedSharding(mesh, PartitionSpec("runs")))
    while state.done < iterations:
        count = min(CHUNK, iterations - state.done)
        loop, costs = _advance(mesh, problem, structure, x0s, optimizer, loss, stop, loop, np.asarray(count))
        state = _recorded(state, loop, np.asarray(costs)[:runs], count, record_every, iterations)
        if on_chunk is not None:
            on_chunk(state)
    returned = _results(mesh, problem, structure, x0s, stop, loop)
    learned = [eqx.combine(jax.tree.map(lambda leaf, r=r: leaf[r], returned), structure) for r in range(runs)]
    return Batch(learned, state.cost, state.recorded, state.status, state.iterations)


def _shape(controller: Controller) -> tuple[Any, ...]:
    arrays = eqx.filter(controller, eqx.is_array)
    return jax.tree.structure(controller), tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(arrays))


def _beginning(start: LoopState, runs: int, iterations: int, record_every: int) -> BatchState:
    recorded = np.arange(0, iterations, record_every)
    carried = [np.asarray(leaf) for leaf in jax.tree.leaves(start)]
    return BatchState(np.full((runs, len(recorded)), np.nan), recorded, *_ends(start, runs), 0, carried)


def _ends(loop: LoopState, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Status and updates made."""
    return np.array([STATUS[int(status)] for status in loop.status[:runs]]), np.asarray(loop.iteration[:runs])


def _taken_up(where: str, resume: BatchState, start: LoopState, iterations: int, record_every: int) -> BatchState:
    fresh = _beginning(start, len(start.status), iterations, record_every)
    shapes = [(leaf.shape, leaf.dtype) for leaf in fresh.carried]
    if [(leaf.shape, leaf.dtype) for leaf in resume.carried] != shapes or not np.array_equal(resume.recorded, fresh.recorded):
        raise ValueError(f"{where}: `resume` belongs to another batch; take up a state with the settings that it was made with.")
    return resume


def _recorded(state: BatchState, loop: LoopState, costs: np.ndarray, count: int, every: int, iterations: int) -> BatchState:
    """After a chunk: its costs, of which a run that ended has those up to its end, and what the runs carry."""
    runs = len(costs)
    carried = [np.asarray(leaf)[:runs] for leaf in jax.tree.leaves(loop)]
    first, kept = -(-state.done // every), costs[:, :count:every]
    cost = state.cost.astype(costs.dtype)
    cost[:, first : first + kept.shape[1]] = kept
    done = iterations if np.all(np.asarray(loop.status) != RUNNING) else state.done + count
    return BatchState(cost, state.recorded, *_ends(loop, runs), done, carried)


@eqx.filter_jit
def _advance(mesh, problem, structure, x0s, optimizer, loss, stop, state, count):
    shared, constants = eqx.partition((problem, structure, stop), eqx.is_array)

    def advance_share(shared, state, x0s, count):
        problem, structure, stop = eqx.combine(shared, constants)

        def update(weights, optimizer_state, x0s):
            def objective(weights):
                """What is descended, and J."""
                controller = eqx.combine(weights, structure)
                value = (cost if loss is None else loss)(problem, controller, x0s)
                if isinstance(value, tuple):
                    return value
                return value, value if loss is None else cost(problem, controller, x0s)

            (value, J), gradient = eqx.filter_value_and_grad(objective, has_aux=True)(weights)
            # Line searches and the like want more than the gradient; other optimisers leave it aside.
            extra = {"value": value, "grad": gradient, "value_fn": lambda weights: objective(weights)[0]}
            updates, optimizer_state = optax.with_extra_args_support(optimizer).update(gradient, optimizer_state, weights, **extra)
            return J, eqx.apply_updates(weights, updates), optimizer_state

        def update_all(weights, optimizer_states):
            return jax.vmap(update)(weights, optimizer_states, x0s)

        return advance(update_all, stop, state, count)

    return _on_devices(mesh, advance_share)(shared, state, x0s, count)


@eqx.filter_jit
def _results(mesh, problem, structure, x0s, stop, state) -> PyTree:
    """The weights that each run returns."""
    shared, constants = eqx.partition((problem, structure, stop), eqx.is_array)

    def results_of_share(shared, state, x0s, _):
        problem, structure, stop = eqx.combine(shared, constants)

        def result(state, x0s):
            weights = state.controller
            returned = stop.result(state.memory, cost(problem, eqx.combine(weights, structure), x0s), weights)
            return jax.tree.map(lambda last, best: jnp.where(state.status == DIVERGED, last, best), weights, returned)

        return jax.vmap(result)(state, x0s)

    return _on_devices(mesh, results_of_share)(shared, state, x0s, None)


def _on_devices(mesh: Mesh, of_share: Callable) -> Callable:
    """`of_share(shared, state, x0s, count)` on every device, each with its share of the runs in `state` and `x0s`."""
    every, runs = PartitionSpec(), PartitionSpec("runs")
    return jax.shard_map(of_share, mesh=mesh, in_specs=(every, runs, runs, every), out_specs=runs, check_vma=False)
