"""Thousands of linear controllers at once: runs of one shape, shared out over all devices.

On a CPU, runs are grouped by the number of their seen states, so that no run computes with states that it does not have; on a GPU, where
small programs are a matter of latency, all runs are one group. In each chunk of iterations every group advances as one compiled program.
Each device takes a share of the runs and works through it in blocks that stay in its cache. Every thousand iterations, runs that are no
longer finite are repeated from a thousand before by `train_lqr`, which says when they diverged and what their last finite controller was;
so both agree on that, too, and neither depends on how long a chunk took.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import ArrayLike, Float

from offspan.controllers import Linear
from offspan.errors import OffspanError, as_count, as_devices, as_floats, as_positive, as_positive_array, as_states, is_number
from offspan.measures import normalization
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR, as_lqr
from offspan.problems.variants import is_noisy, without_noise
from offspan.rollout import noise_covariances
from offspan.sizes import check_memory
from offspan.training.batch import Batch
from offspan.training.engine import CHUNK, next_chunk
from offspan.training.lqr_kernels import (
    Systems,
    descend_by_products,
    descend_in_lanes,
    stage_costs_by_products,
    stage_costs_in_lanes,
)
from offspan.training.stopping import RUNNING, Status
from offspan.training.train import descend_lqr

LANES = 32  # runs in a block of small systems: a few vectors of each number, and all of a block's numbers in the first cache
FEW_LANES = 8  # the same for systems of more than SMALL dimensions
SMALL, MIDDLE = 8, 16  # up to these dimensions, products are written out in lanes on a GPU and on a CPU
WRITTEN_OUT = 5  # on a CPU, time is written out up to this horizon and dimension; beyond, that is slower than a loop
GPU_STEPS_IN_LANES, GPU_STEPS = 16, 64  # time steps that a GPU's program writes out at most: one launch serves them all
GPU_WORKSPACE = 2**31  # bytes for the states and costates of the runs that a GPU trains side by side
GPU_ROWS = 2**13  # rows of all matrices of a block from which on a GPU is faster if costates are not stacked
MEASURES = ("normalized_optimality", "normalized_cost")
MATRICES = 30  # of n × n numbers that a run has, on the host and on the devices


def train_lqr_batch(
    problems: Sequence[Problem],
    x0s: Sequence[Float[ArrayLike, "_ n"]],
    *,
    learning_rate: float | Sequence[float] | np.ndarray,
    iterations: int,
    K0: Float[ArrayLike, "r m n"] | None = None,
    clip: float | None = None,
    record_every: int = 100,
    resume: Batch | None = None,
    on_chunk: Callable[[Batch], Any] | None = None,
    memory_limit: float | None = None,
    devices: Sequence[Any] | None = None,
) -> Batch:
    """K_r ← K_r − η_r ∇J_r(K_r; S_r) for every run r at once; each has its own problem, seen states, learning rate and start.

    Each run is that of `train_lqr`  [R24, eq:policy_grad]. All problems have one n, m and H; the seen sets may differ in size. Of a `Noisy`
    LQR, J is the expected cost, and the measures are those without noise. Records are NaN where a measure is not defined.

    `on_chunk` is called with the batch after each chunk of iterations, and `resume` continues such a batch bit for bit, also to more
    iterations; later chunks fill the same record arrays, so copy what you keep longer. A run that diverges is detected, and its last finite
    controller restored, at the next multiple of 1,000 iterations. `memory_limit` is in bytes, by default what is free. The runs
    are shared out over `devices`, by default all of this process; few small ones take fewer.

    >>> import offspan
    >>> systems, seen = [offspan.identity(2, horizon=2), offspan.shift(2, horizon=2)], [offspan.basis(2, 1)] * 2
    >>> batch = offspan.train_lqr_batch(systems, seen, learning_rate=0.125, iterations=1)
    >>> batch.normalized_optimality.tolist()  # the shift visits e_2, which then goes to 3/4 e_1; the identity does not
    [[1.0, 1.0], [1.0, 0.5625]]
    """
    where = "train_lqr_batch"
    if isinstance(problems, Problem):
        raise OffspanError(f"{where}: `problems` is one {type(problems).__name__}, but must be a list; `train_lqr` takes one.")
    devices = as_devices(where, devices)
    try:
        problems, x0s = list(problems), list(x0s)
    except TypeError as error:
        raise OffspanError(f"{where}: `problems` and `x0s` must be lists of equal length, an LQR and a seen set for each run.") from error
    if not problems or len(problems) != len(x0s):
        raise OffspanError(f"{where}: `problems` has {len(problems)} entries and `x0s` {len(x0s)}; pass one seen set for each problem.")
    shapes = {(as_lqr(where, without_noise(p)).state_dim, p.control_dim, p.horizon) for p in problems}
    if len(shapes) > 1:
        raise OffspanError(f"{where}: `problems` have several shapes (n, m, H), {sorted(shapes)}; train each shape in its own batch.")
    (n, m, H), runs = shapes.pop(), len(problems)
    checked: dict[int, np.ndarray] = {}  # sets that many runs share are checked once
    for r, x in enumerate(x0s):
        if id(x) not in checked:
            checked[id(x)] = np.asarray(as_states(where, f"x0s[{r}]", x, n))
    x0s = [checked[id(x)] for x in x0s]
    iterations = as_count(where, "iterations", iterations, least=0)
    every = min(as_count(where, "record_every", record_every, least=1), max(iterations, 1))
    meaning = "one number, or one for each run"
    for_each_run = [learning_rate] * runs if is_number(learning_rate) else learning_rate
    rates = np.asarray(as_positive_array(where, "learning_rate", for_each_run, shape=(runs,), meaning=meaning), float)
    largest = None if clip is None else as_positive(where, "clip", clip)
    counts, records = Counter(map(len, x0s)), -(-iterations // every) + 1
    what = f"{where}: {runs:,} runs of {H:,} time steps with {records:,} records each"
    advice = "record less often (`record_every`), split the batch, or shorten the horizon"
    check_memory(what, batch_bytes(counts, n, m, H, records, devices), advice, memory_limit)
    recorded = np.unique(np.append(np.arange(0, iterations, every), iterations))

    groups, dtype = _groups(problems, x0s, rates, largest, devices)
    if resume is None:
        meaning = f"shape (r, m, n) = ({runs}, {m}, {n}): one K for each run"
        start = np.zeros((runs, m, n)) if K0 is None else np.asarray(as_floats(where, "K0", K0, shape=(runs, m, n), meaning=meaning))
        empty = np.full((runs, len(recorded)), np.nan, dtype)
        weights, structure = eqx.partition(Linear(np.zeros((m, n))), eqx.is_inexact_array)
        codes, made = np.full(runs, RUNNING, np.int8), np.zeros(runs, int)
        measures, K = {name: empty.copy() for name in MEASURES}, start.astype(dtype)
        weights = jax.tree.map(lambda _: K, weights)
        batch = Batch(weights, structure, codes, made, 0, recorded, empty, measures, (K, np.array(0)), asked=iterations)
    else:
        batch = _restore(where, resume, recorded, (runs, m, n), dtype)
    slots = -(-CHUNK // every) + 1
    if batch.done < iterations:
        _compile(groups, slots, every)  # so that the clock measures updates alone
    chunk = 1
    while batch.done < iterations:
        count, started = min(chunk, iterations - batch.done, CHUNK - batch.done % CHUNK), time.perf_counter()
        batch, J = _advance(groups, batch, count, slots, every)
        if batch.done % CHUNK == 0 or batch.done == iterations:
            batch = _end_diverged(groups, batch, J)
        chunk = next_chunk(count, time.perf_counter() - started)
        if on_chunk is not None and batch.done < iterations:
            on_chunk(batch)
    batch = batch if iterations else _advance(groups, batch, 0, slots, every)[0]
    if on_chunk is not None:
        on_chunk(batch)
    return batch


def _restore(where: str, resume: Batch, recorded: np.ndarray, shape: tuple[int, int, int], dtype: np.dtype) -> Batch:
    """`resume` with room for the records of this training, which may be longer."""
    if not isinstance(resume, Batch) or not resume.measures or (resume.K.shape, resume.K.dtype) != (shape, dtype):
        raise OffspanError(f"{where}: `resume` belongs to another batch, of other runs.")
    made = recorded[recorded < resume.done]
    if resume.done > recorded[-1] or not np.array_equal(made, resume.recorded[resume.recorded < resume.done]):
        raise OffspanError(f"{where}: `resume` belongs to another batch, with other records or more iterations.")
    kept = np.isin(resume.recorded, recorded)

    def extended(record: np.ndarray) -> np.ndarray:
        longer = np.full((len(record), len(recorded)), np.nan, record.dtype)
        longer[:, : kept.sum()] = record[:, kept]
        return longer

    measures = {name: extended(resume.measures[name]) for name in MEASURES}
    return replace(resume, recorded=recorded, asked=int(recorded[-1]), cost=extended(resume.cost), measures=measures)


def _advance(groups: list["_Group"], batch: Batch, count: int, slots: int, every: int) -> tuple[Batch, np.ndarray]:
    """The batch after `count` more updates, with records filled in where they are due; and J of its controllers."""
    K, alive, upto = batch.K.copy(), batch.codes == RUNNING, batch.done + count
    due = np.flatnonzero((batch.recorded >= batch.done) & (batch.recorded < upto))
    slot = batch.recorded[due] // every - batch.done // every  # slot 0 is the start of the chunk, where a record may be due or not
    J = np.empty(len(K), K.dtype)
    for group in groups:
        members = group.members
        K_new, records, last = group.advance(K[members], batch.done, count, slots, every)
        K[members], J[members] = np.where(alive[members, None, None], K_new, K[members]), last[0]
        for stored, value, final in zip((batch.cost, *batch.measures.values()), records, last, strict=True):
            stored[np.ix_(members, due)] = np.where(alive[members, None], value[:, slot], np.nan)
            if batch.recorded[-1] == upto:
                stored[members, -1] = np.where(alive[members], final, np.nan)
    made = batch.iterations + np.where(alive, count, 0)
    return replace(batch, weights=jax.tree.map(lambda _: K, batch.weights), iterations=made, done=upto), J


def _end_diverged(groups: list["_Group"], batch: Batch, J: np.ndarray) -> Batch:
    """Ends the runs that diverged since the controllers that the batch carries; J is the cost of those that it has now."""
    (anchor, at), K, codes, iterations = batch.carried, batch.K.copy(), batch.codes.copy(), batch.iterations.copy()
    begun = int(at)
    since = (batch.recorded >= begun) & (batch.recorded < batch.done)
    # The cost overflows before the controller does.
    finite = np.isfinite(K).all(axis=(1, 2)) & np.isfinite(J) & np.isfinite(batch.cost[:, since]).all(axis=1)
    suspect = (codes == RUNNING) & ~finite
    for group in groups:
        for i in np.flatnonzero(suspect[group.members]):
            r = group.members[i]
            options: dict[str, Any] = {"learning_rate": float(group.rates[i]), "iterations": batch.done - begun, "clip": group.clip}
            problem = jax.tree.map(jnp.asarray, group.problems[i])
            again = descend_lqr(problem, group.x0s[i, : group.counts[i]], K0=anchor[r], **options)
            K[r] = again.K
            if again.status == Status.diverged:
                codes[r], iterations[r] = int(again.status), begun + again.iterations
                for stored in (batch.cost, *batch.measures.values()):
                    stored[r, batch.recorded > iterations[r]] = np.nan
        group.freeze(np.flatnonzero(suspect[group.members] & (codes[group.members] != RUNNING)))
    weights = jax.tree.map(lambda _: K, batch.weights)
    return replace(batch, weights=weights, codes=codes, iterations=iterations, carried=(K.copy(), np.array(batch.done)))


class _Layout(NamedTuple):
    """How a group's runs are distributed over the devices: what its program is compiled for, besides the shapes."""

    mesh: Mesh
    on_cpu: bool
    horizon: int
    in_lanes: bool
    unroll: int
    stacked: bool
    blocks: int
    block: int

    @classmethod
    def of(cls, runs: int, n: int, m: int, s: int, horizon: int, devices: Sequence[Any]) -> "_Layout":
        """Blocks that fit the cache of a CPU, or that fill a GPU without filling its memory."""
        size, on_cpu = max(n, m), _on_cpu(devices)
        if on_cpu:
            in_lanes = size <= MIDDLE
            most = (LANES if size <= SMALL else FEW_LANES) if in_lanes else 1
            unroll = horizon if max(size, horizon) <= WRITTEN_OUT else 1
        else:
            in_lanes = size <= SMALL
            most = max(GPU_WORKSPACE // (8 * 3 * horizon * s * n), 1)
            unroll = min(horizon, GPU_STEPS_IN_LANES if in_lanes else GPU_STEPS)
        devices = devices[: -(-runs // 8) if in_lanes else runs]  # eight lanes take the time of one
        share = -(-runs // len(devices))
        blocks = -(-share // most)
        block = -(-share // blocks)
        block = -(-block // 8) * 8 if in_lanes else block
        stacked = on_cpu or block * n < GPU_ROWS
        return cls(Mesh(np.array(devices), ("runs",)), on_cpu, horizon, in_lanes, unroll, stacked, blocks, block)

    def put(self, values: Any, fill: int = 0) -> jax.Array:
        """On the devices, shared out over the runs, filled up to whole blocks: a system of zeros stays zero."""
        padded = self.mesh.size * self.blocks * self.block
        filled = np.concatenate([values, np.full((padded - len(values), *values.shape[1:]), fill, values.dtype)])
        return jax.device_put(filled, NamedSharding(self.mesh, Spec("runs")))


def _on_cpu(devices: Sequence[Any]) -> bool:
    return devices[0].platform == "cpu"


def _groups(
    problems: list[Problem], x0s: list[np.ndarray], rates: np.ndarray, clip: float | None, devices: Sequence[Any]
) -> tuple[list["_Group"], np.dtype]:
    """All runs, in groups that one program advances; and the type of their numbers."""
    plain = [as_lqr("train_lqr_batch", without_noise(problem)) for problem in problems]
    dtype = np.result_type(*(problem.A.dtype for problem in plain), *x0s)
    matrices = zip(*map(jax.tree.leaves, plain), strict=True)  # problems may differ in the names of their coordinates, too
    stacked = jax.tree.unflatten(
        jax.tree.structure(plain[0]), [np.stack([np.asarray(M) for M in of_runs]).astype(dtype) for of_runs in matrices]
    )
    counts = np.array([len(x) for x in x0s])
    padded = np.zeros((len(x0s), counts.max(), stacked.state_dim), dtype)
    for r, x in enumerate(x0s):
        padded[r, : len(x)] = x
    normalizations = _normalizations(stacked, padded)
    noisy = np.array([is_noisy(problem) for problem in problems])
    size = counts if _on_cpu(devices) else np.where(noisy, counts, 0)  # noise has states of its own after the seen ones
    groups = []
    for one in np.unique(np.stack([size, noisy], axis=1), axis=0):
        members = np.flatnonzero((size == one[0]) & (noisy == one[1]))
        of_group = lambda values: jax.tree.map(lambda leaf: leaf[members], values)  # noqa: B023, E731
        groups.append(
            _Group(
                members,
                [problems[r] for r in members],
                of_group(stacked),
                padded[members][:, : counts[members].max()],
                counts[members],
                rates[members].astype(dtype),
                clip,
                of_group(normalizations),
                devices,
            )
        )
    return groups, dtype


def _compile(groups: list["_Group"], slots: int, every: int) -> None:
    """All programs side by side. They are traced here, as jax's settings belong to a thread."""
    lowered = [group.lowered(slots, every) for group in groups]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda program: program.compile(), lowered))


class _Group:
    """Runs of one program: on the host for what happens once, on the devices for what happens in every iteration."""

    def __init__(
        self,
        members: np.ndarray,
        problems: list[Problem],
        stacked: LQR,
        x0s: np.ndarray,
        counts: np.ndarray,
        rates: np.ndarray,
        clip: float | None,
        normalizations: list[np.ndarray],
        devices: Sequence[Any],
    ):
        self.members, self.problems, self.clip = members, problems, clip
        self.x0s, self.counts, self.rates = x0s, counts, rates
        self.columns, weights, constant = _with_noise(problems, x0s)
        n, m, dtype = stacked.state_dim, stacked.control_dim, x0s.dtype
        self.layout = _Layout.of(len(members), n, m, self.columns.shape[1], stacked.horizon, devices)
        put, eye = self.layout.put, np.eye(n)
        self.systems = Systems(
            put(stacked.A),
            None if m == n and np.all(eye == stacked.B) else put(stacked.B),
            None if np.all(eye == stacked.Q) else put(stacked.Q),
            None if not stacked.R.any() else put(stacked.R),
            put(self.columns),
            put(counts.astype(dtype), fill=1),
            put(rates),
            None if clip is None else put(np.full(len(members), clip, dtype)),
            None if weights is None else put(weights),
        )
        states, *baselines = normalizations
        measured = np.concatenate([self.columns, states], axis=1), *baselines, constant
        self.measured = tuple(put(np.asarray(values, dtype)) for values in measured)

    def lowered(self, slots: int, every: int) -> Any:
        """The program, traced and not yet compiled."""
        K = self.layout.put(np.zeros((len(self.members), self.problems[0].control_dim, self.problems[0].state_dim), self.x0s.dtype))
        return self._program().lower(self.layout, self.systems, self.measured, K, 0, 0, every, slots=slots)

    def advance(self, K: np.ndarray, done: int, count: int, slots: int, every: int):
        """K after `count` updates; records (r, slots) at the start of the chunk and where they are due; and the record at its end."""
        inputs = self.systems, self.measured, self.layout.put(K), done % every, count, every
        K_after, records, last = self._program()(self.layout, *inputs, slots=slots)
        runs = len(K)
        return np.asarray(K_after)[:runs], [np.asarray(record)[:runs] for record in records], [np.asarray(one)[:runs] for one in last]

    def _program(self) -> Any:
        return _advance_wide if self.layout.in_lanes and self.layout.on_cpu else _advance_plain

    def freeze(self, which: np.ndarray) -> None:
        """Zero states stay zero and have zero gradient, so that a run which has ended keeps its K."""
        if len(which):
            self.columns[which] = 0.0
            self.systems = self.systems._replace(x0s=self.layout.put(self.columns))


def _advance_group(layout: _Layout, systems: Systems, measured, K, past, count, every, *, slots: int):
    """One program for any `count` and `every` with at most `slots` records; `past` iterations were made since the last one was due."""

    def block(systems, measured, K):
        def interval(carry):
            slot, made, K, records = carry
            now = _records(layout, systems, measured, K)
            records = jax.tree.map(lambda record, value: record.at[slot].set(value), records, now)
            updates = jnp.minimum(every - (past + made) % every, count - made)
            if layout.in_lanes:
                K = descend_in_lanes(systems, K, layout.horizon, updates, layout.unroll)
            else:
                descend = partial(descend_by_products, horizon=layout.horizon, count=updates, unroll=layout.unroll, stacked=layout.stacked)
                K = jax.vmap(lambda one, K: descend(one, K))(systems, K)
            return slot + 1, made + updates, K, records

        empty = (jnp.zeros((slots, layout.block), K.dtype),) * (1 + len(MEASURES))
        _, _, K, records = jax.lax.while_loop(lambda carry: carry[1] < count, interval, (0, jnp.zeros_like(count), K, empty))
        return K, records, _records(layout, systems, measured, K)

    def share(systems, measured, K):
        """A device's share: block after block."""
        blocked = jax.tree.map(lambda a: a.reshape(layout.blocks, layout.block, *a.shape[1:]), (systems, measured, K))
        K, records, last = jax.lax.map(lambda one: block(*one), blocked)
        flat = lambda a: a.reshape(-1, *a.shape[2:])  # noqa: E731
        return flat(K), jax.tree.map(lambda a: flat(jnp.swapaxes(a, 1, 2)), records), jax.tree.map(flat, last)

    if layout.mesh.size == 1:
        return share(systems, measured, K)
    runs = Spec("runs")
    return jax.shard_map(share, mesh=layout.mesh, in_specs=(runs,) * 3, out_specs=runs, check_vma=False)(systems, measured, K)


_advance_plain = jax.jit(_advance_group, static_argnums=0, static_argnames="slots")
# Wider vectors than the compiler's default save a third of the time in lanes; the option is the CPU compiler's.
_advance_wide = jax.jit(_advance_group, static_argnums=0, static_argnames="slots", compiler_options={"xla_cpu_prefer_vector_width": 512})


def _records(layout: _Layout, systems: Systems, measured, K):
    """(J, normalised optimality, normalised cost) of each run: sums of stage costs from the seen states and from those that stand for U."""
    states, optimality, total, constant = measured
    if layout.in_lanes:
        costs = stage_costs_in_lanes(systems, K, states, layout.horizon)
    else:
        costs = jax.vmap(lambda one, K, X: stage_costs_by_products(one, K, X, layout.horizon))(systems, K, states)
    columns = systems.x0s.shape[1]
    on_seen, unseen = costs[:, :, :columns], costs[:, 1:, columns:].sum(axis=2)
    J = on_seen.sum(axis=(1, 2)) / systems.seen if systems.weights is None else (on_seen * systems.weights).sum(axis=(1, 2)) + constant
    return J, unseen[:, 0] / optimality, unseen.sum(axis=1) / total


def _with_noise(problems: list[Problem], x0s: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """The states that a run computes with, those of the noise after the seen ones; their weights; and what noise in the controls costs."""
    runs, seen, n = x0s.shape
    if not is_noisy(problems[0]):
        return x0s.copy(), None, np.zeros(runs)
    H = problems[0].horizon
    states, constant = np.zeros((runs, n, n)), np.zeros(runs)
    for r, problem in enumerate(problems):
        lqr, covariance, of_control = noise_covariances(problem)
        values, vectors = np.linalg.eigh(np.asarray(covariance, float))
        states[r] = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
        constant[r] = (H + 1) * np.sum(np.asarray(lqr.R) * np.asarray(of_control))
    often = np.append(np.arange(H, 0, -1), 0)
    weights = np.concatenate([np.full((runs, H + 1, seen), 1 / seen), np.tile(often[None, :, None], (runs, 1, n))], axis=2)
    return np.concatenate([x0s, states.astype(x0s.dtype)], axis=1), weights.astype(x0s.dtype), constant


def _normalizations(problems: LQR, x0s: np.ndarray):
    """`normalization` of each run; NaN where B is not square, for which no measure is defined."""
    if problems.control_dim == problems.state_dim:
        return [np.asarray(values) for values in _normalization_of_each(problems, x0s)]
    runs, n, dtype = len(x0s), problems.state_dim, problems.A.dtype
    return [np.zeros((runs, n, n), dtype), np.full(runs, np.nan, dtype), np.full(runs, np.nan, dtype)]


_normalization_of_each = jax.jit(jax.vmap(normalization))


def batch_bytes(seen: Mapping[int, int], n: int, m: int, horizon: int, records: int, devices: Sequence[Any] | None = None) -> float:
    """Memory of `train_lqr_batch` for so many runs of each number of seen states, at most, without the program itself.

    Records twice, as one checkpoint is written while the next is made; matrices on the host and on the devices; and in each block of runs
    states and costates, or the stage costs from the seen states and from n more.
    """
    of_runs = sum(seen.values()) * (2 * (1 + len(MEASURES)) * records + MATRICES * n * max(n, m))

    def workspace(s: int, runs: int) -> int:
        layout = _Layout.of(runs, n, m, s, horizon, jax.local_devices() if devices is None else devices)
        side_by_side = layout.mesh.size * layout.block
        return side_by_side * (horizon + 1) * (s * n * (1 if layout.in_lanes else 3) + 2 * (s + n))

    return 8.0 * (of_runs + max(workspace(s, runs) for s, runs in seen.items()))
