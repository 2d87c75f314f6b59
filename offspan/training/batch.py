"""The engine of `train` and `train_batch`: each device advances its share of the runs side by side, and a run that has ended stands still
until all have. One run is a batch of one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from offspan.errors import OffspanError
from offspan.problems.base import Problem
from offspan.rollout import Controller, cost
from offspan.training.loop import CHUNK, DIVERGED, RUNNING, STATUS, LoopState, Status, StoppingRule, advance

Loss = Callable[[Problem, Controller, Array], Array | tuple[Array, Array]]
RUNS = PartitionSpec("runs")


class Run(NamedTuple):
    """A finished training run; `iterations` updates were made, and a diverged run failed at the iteration of that number.

    `cost[q]` = J(π; S) before update `recorded[q]`  [R24, eq:policy_grad].

    >>> import optax, offspan
    >>> problem, zero = offspan.identity(1, horizon=1), offspan.Linear([[0.0]])
    >>> run = offspan.train(problem, zero, offspan.basis(1), optimizer=optax.sgd(0.25), iterations=2)
    >>> run.cost.tolist(), run.controller.K.tolist()  # 1 + (1 + K)², where 1 + K halves with each update
    ([2.0, 1.25], [[-0.75]])
    """

    controller: Any
    cost: np.ndarray  # (q,): J(π; S) before update `recorded[q]`
    status: Status
    iterations: int
    recorded: np.ndarray  # (q,)


class BatchState(NamedTuple):
    """A batch of runs r, `done` iterations in: all that a checkpoint has to hold. `done` is the last iteration once every run has ended.

    `cost[r, q]` = J(π; S) before update q · `record_every`, NaN after the run's end  [beyond R24].

    >>> import optax, offspan
    >>> problem, zero, states = offspan.identity(1, horizon=1), offspan.Linear([[0.0]]), []
    >>> how = dict(optimizer=optax.sgd(0.25), iterations=3, record_every=2, on_chunk=states.append)
    >>> batch = offspan.train_batch(problem, [zero], offspan.basis(1), **how)
    >>> states[0].done, states[0].cost.tolist()  # 1 + (1 + K)², where 1 + K is 1/4 after two updates
    (3, [[2.0, 1.0625]])
    """

    cost: np.ndarray  # (r, q): J(π; S) before update q · record_every, NaN after the run's end
    status: np.ndarray  # (r,), of Status
    iterations: np.ndarray  # (r,), updates made
    record_every: int
    done: int
    carried: list[np.ndarray]  # the leaves of a LoopState


class Batch(NamedTuple):
    """Finished training runs r. `cost[r, q]` = J(π; S) before update `recorded[q]`, NaN after the run's end  [R24, eq:policy_grad].

    >>> import optax, offspan
    >>> starts = [offspan.Linear([[0.0]]), offspan.Linear([[-1.0]])]  # J(K) = 1 + (1 + K)², least at −1
    >>> batch = offspan.train_batch(
    ...     offspan.identity(1, horizon=1), starts, offspan.basis(1), optimizer=optax.sgd(0.25), iterations=2, record_every=1
    ... )
    >>> batch.cost.tolist(), batch.run(0).controller.K.tolist()
    ([[2.0, 1.25], [1.0, 1.0]], [[-0.75]])
    """

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


class Settings(NamedTuple):
    """What the compiled program depends on, beside shapes."""

    problem: Problem
    optimizer: optax.GradientTransformation
    loss: Loss | None
    stop: StoppingRule


def run_batch(
    where: str,
    settings: Settings,
    controllers: Sequence[Controller],
    x0s: Float[Array, "r s n"],
    *,
    iterations: int,
    record_every: int,
    resume: BatchState | None,
    on_chunk: Callable[[np.ndarray, Callable[[], BatchState]], Any],
) -> Batch:
    """Trains all controllers to their ends. `on_chunk` hears the updates made, and gets a function that makes the state if it is wanted."""
    runs = len(controllers)
    parts = [eqx.partition(controller, eqx.is_inexact_array) for controller in controllers]
    structure = parts[0][1]
    weights = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(weights for weights, _ in parts))
    start = LoopState.start(weights, jax.vmap(settings.optimizer.init)(weights), settings.stop)
    loop = start if resume is None else _taken_up(where, resume, start, iterations, record_every)
    done, chunks = (0, []) if resume is None else (resume.done, [resume.cost])

    devices = jax.devices()[:runs]
    mesh = Mesh(np.array(devices), ("runs",))
    filled = np.minimum(np.arange(-(-runs // len(devices)) * len(devices)), runs - 1)  # equal shares: the last run fills them up
    loop, x0s = jax.device_put(jax.tree.map(lambda leaf: _strong(leaf)[filled], (loop, x0s)), NamedSharding(mesh, RUNS))

    def state() -> BatchState:
        leaves = [_as_numpy(leaf)[:runs] for leaf in jax.tree.leaves(loop)]
        return BatchState(_together(chunks, runs), *_ends(loop, runs), record_every, done, leaves)

    while done < iterations:
        count = min(CHUNK, iterations - done)
        loop, costs = _advance(mesh, settings, structure, x0s, loop, np.asarray(count))
        chunks.append(np.asarray(costs)[:runs, :count:record_every])
        done = iterations if np.all(np.asarray(loop.status) != RUNNING) else done + count
        on_chunk(np.asarray(loop.iteration)[:runs], state)
    # On the host and back: free of the devices that the batch was shared out over.
    returned = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), _results(mesh, settings, structure, x0s, loop))
    learned = [eqx.combine(jax.tree.map(lambda leaf, r=r: leaf[r], returned), structure) for r in range(runs)]
    cost = _together(chunks, runs)
    return Batch(learned, cost, record_every * np.arange(cost.shape[1]), *_ends(loop, runs))


def _together(chunks: list[np.ndarray], runs: int) -> np.ndarray:
    return np.concatenate(chunks, axis=1) if chunks else np.empty((runs, 0))


def _ends(loop: LoopState, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Status and updates made."""
    return np.array([STATUS[int(status)] for status in loop.status[:runs]]), np.asarray(loop.iteration[:runs])


def _strong(leaf: Array) -> Array:
    """With a type of its own: a constant's is weak, the first chunk makes it strong, and the second would be compiled again."""
    return leaf if _is_key(leaf) else jax.lax.convert_element_type(leaf, leaf.dtype)


def _is_key(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_numpy(leaf: Array) -> np.ndarray:
    """An optimiser may carry random keys, which are not numbers."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _taken_up(where: str, resume: BatchState, start: LoopState, iterations: int, record_every: int) -> LoopState:
    leaves, structure = jax.tree.flatten(start)
    runs = len(start.status)
    fits = (
        isinstance(resume, BatchState)
        and [(leaf.shape, leaf.dtype) for leaf in resume.carried] == [(leaf.shape, leaf.dtype) for leaf in map(_as_numpy, leaves)]
        and resume.cost.shape[:1] == resume.status.shape == resume.iterations.shape == (runs,)
        and int(resume.record_every) == record_every
        and resume.done <= iterations
    )
    if not fits:
        raise OffspanError(f"{where}: `resume` belongs to another batch; take up a state with the settings that it was made with.")
    stored = [
        jax.random.wrap_key_data(jnp.asarray(new), impl=jax.random.key_impl(old)) if _is_key(old) else jnp.asarray(new)
        for new, old in zip(resume.carried, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, stored)


@eqx.filter_jit
def _advance(mesh, settings, structure, x0s, state, count):
    shared, constants = eqx.partition((settings.problem, structure, settings.stop), eqx.is_array)
    optimizer, loss = settings.optimizer, settings.loss

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
def _results(mesh, settings, structure, x0s, state) -> PyTree:
    """The weights that each run returns."""
    shared, constants = eqx.partition((settings.problem, structure, settings.stop), eqx.is_array)

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
    every = PartitionSpec()
    return jax.shard_map(of_share, mesh=mesh, in_specs=(every, RUNS, RUNS, every), out_specs=RUNS, check_vma=False)
