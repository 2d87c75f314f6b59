"""The engine of all gradient training: compiled chunks of updates, and between them, on the host, progress, checkpoints and stopping.

N iterations are N updates, and a cost recorded at iteration i is that of the controller before update i. Each device advances its share of
the runs; a run that has ended is frozen until all have ended. One run is a batch of one.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from offspan.controllers import stack_weights
from offspan.errors import OffspanError, as_devices
from offspan.problems.base import Problem
from offspan.problems.variants import Truncated
from offspan.rollout import Controller, cost
from offspan.training.batch import Batch
from offspan.training.estimators import Estimator
from offspan.training.stopping import RUNNING, Status, StoppingRule

CHUNK = 1_000  # iterations in one compiled call, at most: enough to hide the call
SECONDS = 2.0  # that such a call should take at most, so that Ctrl-C, progress and checkpoints answer within seconds
RUNS = PartitionSpec("runs")


class LoopState(eqx.Module):
    """What a run carries from one update to the next; on the host with a leading axis of runs."""

    weights: PyTree
    optimizer_state: PyTree
    memory: PyTree
    key: Key[Array, "*r"]
    iteration: Int[Array, "*r"]
    status: Int[Array, "*r"]


class Stages(eqx.Module):
    """A schedule: stage i has the i-th share of the iterations, and descends the cost of the first `last[i]` steps, discounted.

    All of it are arrays, so that one program serves every stage.
    """

    last: Int[Array, "k"]
    discount: Float[Array, "k"]
    iterations: Int[Array, ""]

    def begin_of_last(self) -> int:
        return -(-(len(self.last) - 1) * int(self.iterations) // len(self.last))

    def at(self, problem: Problem, iteration: Int[Array, ""]) -> tuple[Problem, Any]:
        """The problem of an iteration, and whether it is that of the last stage."""
        count = len(self.last)
        stage = jnp.minimum(iteration * count // self.iterations, count - 1)
        return Truncated(problem, self.last[stage], self.discount[stage]), stage == count - 1


class Given(eqx.Module):
    """What each run is given, with a leading axis of runs: its seen states, the arrays of its problem where problems differ, and which of
    the optimisers is its own where there are several."""

    x0s: Float[Array, "*r s n"]
    problem: PyTree = None
    optimizer: Int[Array, "*r"] | None = None

    def of(self, shared: Problem) -> Problem:
        """The problem of one run."""
        return shared if self.problem is None else eqx.combine(self.problem, shared)


class Settings(NamedTuple):
    """What the compiled program depends on, besides shapes."""

    problem: Problem
    estimator: Estimator
    optimizer: Any  # optax's, or another value with `init` and `update`
    stop: StoppingRule
    stages: Stages | None = None


def next_chunk(count: int, seconds: float) -> int:
    """How many iterations the next compiled call makes, if `count` of them took `seconds`."""
    return max(1, min(int(count * SECONDS / max(seconds, 1e-9)), 10 * count, CHUNK))


def run_batch(
    where: str,
    settings: Settings,
    controllers: Sequence[Controller],
    given: Given,
    *,
    key: PRNGKeyArray,
    iterations: int,
    record_every: int,
    record_last: bool = True,
    resume: Batch | None = None,
    on_chunk: Callable[[Batch], Any] | None = None,
    devices: Any = None,
) -> Batch:
    """Trains all controllers to their ends. `on_chunk` gets the batch after every compiled chunk, the last time as it is returned."""
    runs = len(controllers)
    weights, structure = stack_weights(controllers)
    loop = LoopState(
        weights,
        jax.vmap(settings.optimizer.init)(weights),
        jax.vmap(settings.stop.init)(weights),
        jax.vmap(lambda r: jax.random.fold_in(key, r))(jnp.arange(runs)),
        jnp.zeros(runs, int),
        jnp.full(runs, RUNNING),
    )
    dtype = jax.eval_shape(lambda X: cost(settings.problem, controllers[0], X, key=key), given.x0s[0]).dtype
    since = 0 if settings.stages is None else settings.stages.begin_of_last()
    done, recorded, costs = 0, [np.empty(0, int)], [np.empty((runs, 0), dtype)]  # of each chunk
    if resume is not None:
        loop = _restore(where, resume, loop, iterations, record_every, since)
        sooner = resume.recorded < resume.done  # a last record is not among those of a longer run
        done, recorded, costs = resume.done, [resume.recorded[sooner]], [resume.cost[:, sooner]]
    devices = as_devices(where, devices)[:runs]
    mesh = Mesh(np.array(devices), ("runs",))
    filled = np.minimum(np.arange(-(-runs // len(devices)) * len(devices)), runs - 1)  # equal shares: padded with the last run
    share = lambda leaf: _strong(leaf)[filled] if len(filled) > runs else _strong(leaf)  # noqa: E731
    loop, given = jax.device_put(jax.tree.map(share, (loop, given)), NamedSharding(mesh, RUNS))

    def batch(weights: PyTree) -> Batch:
        codes, made = np.asarray(loop.status)[:runs].astype(np.int8), np.asarray(loop.iteration)[:runs]
        carried = tuple(_as_numpy(leaf)[:runs] for leaf in jax.tree.leaves(loop))
        returned = jax.tree.map(lambda leaf: np.asarray(leaf)[:runs], weights)
        records = np.concatenate(recorded), np.concatenate(costs, axis=1)
        return Batch(returned, structure, codes, made, done, *records, carried=carried, since=since, asked=iterations)

    advance = lambda loop, count: _advance(mesh, settings, structure, given, loop, (np.asarray(done), np.asarray(count)))  # noqa: E731
    chunk = 1
    if done < iterations:
        jax.block_until_ready(advance(loop, 0))  # compiles, so that the clock measures updates alone
    while done < iterations:
        count, started = min(chunk, iterations - done), time.perf_counter()
        loop, chunk_costs = advance(loop, count)
        made = np.asarray(loop.iteration)  # waits for the chunk
        chunk = next_chunk(count, time.perf_counter() - started)
        columns = np.arange(-done % record_every, min(count, made.max() - done + 1), record_every)
        recorded.append(done + columns)
        costs.append(np.asarray(chunk_costs)[:runs, columns])
        done = iterations if np.all(np.asarray(loop.status) != RUNNING) else done + count
        if on_chunk is not None and done < iterations:
            on_chunk(batch(loop.weights))
    returned, J = _results(mesh, settings, structure, given, loop)
    finished = np.asarray(loop.status)[:runs] == RUNNING
    if record_last and finished.any():
        recorded.append(np.array([iterations]))
        costs.append(np.where(finished, np.asarray(J)[:runs], np.nan)[:, None].astype(dtype))
    result = batch(returned)
    if on_chunk is not None:
        on_chunk(result)
    return result


def _strong(leaf: Array) -> Array:
    """Not weakly typed, as constants are: the first chunk would return it strongly typed, and the second would be compiled again."""
    return leaf if _is_key(leaf) else jax.lax.convert_element_type(leaf, leaf.dtype)


def _is_key(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_numpy(leaf: Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _restore(where: str, resume: Batch, start: LoopState, iterations: int, record_every: int, since: int) -> LoopState:
    """The state of the loop that `resume` carries."""
    leaves, structure = jax.tree.flatten(start)
    same_leaves = isinstance(resume, Batch) and [(leaf.shape, leaf.dtype) for leaf in resume.carried] == [
        (leaf.shape, leaf.dtype) for leaf in map(_as_numpy, leaves)
    ]
    fits = (
        same_leaves
        and resume.since == since
        and resume.done <= iterations
        # Before its last one, a batch has a record every `record_every` iterations, until the last of its runs has ended.
        and np.array_equal(
            resume.recorded[resume.recorded < resume.done], np.arange(0, min(resume.done, resume.iterations.max() + 1), record_every)
        )
    )
    if not fits:
        raise OffspanError(f"{where}: `resume` belongs to another batch; resume it with the settings that it was made with.")
    restored = [
        jax.random.wrap_key_data(jnp.asarray(new), impl=jax.random.key_impl(old)) if _is_key(old) else jnp.asarray(new)
        for new, old in zip(resume.carried, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, restored)


@eqx.filter_jit
def _advance(mesh, settings, structure, given, loop, span):
    """Up to `count` ≤ CHUNK updates of each run after `begun`, as one program whatever these are; and the cost before each (r, CHUNK).

    The iteration that ends a run makes no update, and its cost is recorded.
    """
    shared, constants = eqx.partition((settings, structure), eqx.is_array)

    def advance_share(shared, loop, given, span):
        (whole, estimator, optimizer, stop, stages), structure = eqx.combine(shared, constants)
        begun, count = span

        def update(stage, run: LoopState, given: Given):
            problem, stops = given.of(whole), None
            if stages is not None:
                problem, stops = stages.at(problem, stage)

            def estimate(weights):
                return estimator(jax.random.fold_in(run.key, run.iteration), problem, eqx.combine(weights, structure), given.x0s)

            estimated = estimate(run.weights)
            # Line searches and the like need more than the gradient; other optimisers ignore it.
            extra = {"value": _descended(estimated), "grad": estimated.gradient, "value_fn": lambda weights: _descended(estimate(weights))}
            extra |= {} if given.optimizer is None else {"which": given.optimizer}
            change, optimizer_state = optax.with_extra_args_support(optimizer).update(
                estimated.gradient, run.optimizer_state, run.weights, **extra
            )
            current, updated = (run.weights, run.optimizer_state), (eqx.apply_updates(run.weights, change), optimizer_state)
            memory, fired = stop.update(run.memory, run.iteration, estimated.cost, run.weights)
            if stops is not None:  # costs of different stages cannot be compared, so that the rule sees the last stage alone
                memory, fired = _where(stops, memory, run.memory), fired & stops
            status = jnp.where(_stays_finite(updated, current), RUNNING, int(Status.diverged))
            status = jnp.where(fired, int(Status.converged), status)
            status = jnp.where(jnp.isfinite(estimated.cost), status, int(Status.diverged))
            running = run.status == RUNNING
            status = jnp.where(running, status, run.status).astype(run.status.dtype)
            goes_on = status == RUNNING
            weights, optimizer_state = _where(goes_on, updated, current)
            after = LoopState(weights, optimizer_state, _where(running, memory, run.memory), run.key, run.iteration + goes_on, status)
            return after, jnp.where(running, estimated.cost, jnp.nan)

        def unfinished(carry):
            made, loop, _ = carry
            return (made < count) & jnp.any(loop.status == RUNNING)

        def step(made, loop):
            # Runs that have not ended have made the same number of updates; that they share this number keeps `cond` from becoming `where`.
            return _each(partial(update, begun + made))(loop, given)

        def body(carry):
            made, loop, costs = carry
            loop, J = step(made, loop)
            return made + 1, loop, costs.at[made].set(J)

        J = jax.eval_shape(step, count, loop)[1]
        _, loop, costs = jax.lax.while_loop(unfinished, body, (0, loop, jnp.full((CHUNK, *J.shape), jnp.nan, J.dtype)))
        return loop, costs.T

    return _on_devices(mesh, advance_share)(shared, loop, given, span)


@eqx.filter_jit
def _results(mesh, settings, structure, given, loop) -> tuple[PyTree, Float[Array, "r"]]:
    """The weights that each run returns, and J of its last ones."""
    shared, constants = eqx.partition((settings, structure), eqx.is_array)

    def results_of_share(shared, loop, given, _):
        settings, structure = eqx.combine(shared, constants)

        def result(run: LoopState, given: Given):
            controller, key = eqx.combine(run.weights, structure), jax.random.fold_in(run.key, run.iteration)
            J = settings.estimator.recorded_cost(key, given.of(settings.problem), controller, given.x0s)
            returned = settings.stop.result(run.memory, J, run.weights)
            return _where(run.status == int(Status.diverged), run.weights, returned), J

        return _each(result)(loop, given)

    return _on_devices(mesh, results_of_share)(shared, loop, given, None)


def _descended(estimate) -> Float[Array, ""]:
    return estimate.cost if estimate.value is None else estimate.value


def _where(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _each(function: Callable) -> Callable:
    """`function` of one run, for every run of a share. A run that is alone is not mapped: its products stay products of matrices."""

    def of_share(*shares):
        if jax.tree.leaves(shares)[0].shape[0] > 1:
            return jax.vmap(function)(*shares)
        return jax.tree.map(lambda leaf: leaf[None], function(*jax.tree.map(lambda leaf: leaf[0], shares)))

    return of_share


def _on_devices(mesh: Mesh, of_share: Callable) -> Callable:
    """`of_share(shared, loop, given, …)` on every device, each with its share of the runs in `loop` and `given`."""
    if mesh.size == 1:
        return of_share  # some solvers cannot be used inside shard_map
    every = PartitionSpec()
    return jax.shard_map(of_share, mesh=mesh, in_specs=(every, RUNS, RUNS, every), out_specs=RUNS, check_vma=False)


def _stays_finite(new: PyTree, old: PyTree) -> Bool[Array, ""]:
    """Whether every number that was finite still is; also in the optimiser, as an infinite second moment would freeze Adam silently."""
    floats = [(a, b) for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a) | ~jnp.isfinite(b)) for a, b in floats]))
