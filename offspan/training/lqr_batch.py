"""Thousands of linear controllers at once: many runs of one shape, shared out over all devices.

Runs are grouped by the number of their seen states, so that no run computes with states that it does not have. In each chunk of iterations
every group advances as one compiled program: each device takes a share of the runs and works through it in blocks that stay in its cache.
Runs do not touch each other's numbers. A run that diverges is found at the end of its chunk, and its chunk is repeated by `train_lqr`'s own
program, which says when it diverged and what its last finite controller was; so a batch and single runs agree on that, too.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import ArrayLike, Float

from offspan.checks import as_count, as_floats, as_states
from offspan.measures import normalization
from offspan.problems.lqr import LQR, as_lqr
from offspan.training.loop import CHUNK, DIVERGED, LoopState, Never, Status
from offspan.training.lqr import advance_lqr
from offspan.training.lqr_kernels import (
    Systems,
    descend_by_products,
    descend_in_lanes,
    stage_costs_by_products,
    stage_costs_in_lanes,
)

LANES = 32  # runs in a block of small systems: a few vectors of each number, and all of a block's numbers in the first cache
SMALL = 8  # systems up to this dimension are written out in lanes
GPU_WORKSPACE = 2**31  # bytes for the states and costates of the runs that a GPU trains side by side
RECORDS = ("cost", "normalized_optimality", "normalized_cost")


class LQRBatch(NamedTuple):
    """Runs r of a batch, `done` iterations in; what a checkpoint has to hold, and at the end the result.

    Records q are of the controllers after `recorded[q]` updates: 0, k, 2k, … and the last. They are NaN where not yet made, where a measure
    is not defined, and for a diverged run from its divergence on; that run failed at iteration `iterations[r]` and keeps its last finite K.
    """

    K: np.ndarray  # (r, m, n)
    status: np.ndarray  # (r,), of Status
    iterations: np.ndarray  # (r,)
    done: int
    recorded: np.ndarray  # (q,)
    cost: np.ndarray  # (r, q)
    normalized_optimality: np.ndarray  # (r, q)
    normalized_cost: np.ndarray  # (r, q)


def train_lqr_batch(
    problems: Sequence[LQR],
    x0s: Sequence[Float[ArrayLike, "_ n"]],
    *,
    learning_rate: float | Sequence[float] | np.ndarray,
    iterations: int,
    K0: Float[ArrayLike, "r m n"] | None = None,
    record_every: int = 100,
    resume: LQRBatch | None = None,
    on_chunk: Callable[[LQRBatch], Any] | None = None,
    memory_limit: float | None = None,
) -> LQRBatch:
    """K_r ← K_r − η_r ∇J_r(K_r; S_r) for every run r at once; each has its own problem, seen states, learning rate and start.

    All problems have one n, m and H; the seen sets may differ in size. `on_chunk` sees the batch after each chunk of iterations, and
    `resume` takes up such a batch again, to the same bits; later chunks fill the same record arrays, so copy what you keep longer.
    `memory_limit` is in bytes, by default what the machine has free.
    """
    where = "train_lqr_batch"
    problems, x0s = list(problems), list(x0s)
    if not problems or len(problems) != len(x0s):
        raise ValueError(f"{where}: there are {len(problems)} problems and {len(x0s)} seen sets; pass one seen set for each problem.")
    shapes = {(as_lqr(where, p).state_dim, p.control_dim, p.horizon) for p in problems}
    if len(shapes) > 1:
        raise ValueError(f"{where}: the problems have several shapes (n, m, H), {sorted(shapes)}; train each shape in a batch of its own.")
    (n, m, _), runs = shapes.pop(), len(problems)
    x0s = [np.asarray(as_states(where, f"x0s[{r}]", x, n)) for r, x in enumerate(x0s)]
    iterations = as_count(where, "iterations", iterations, least=0)
    record_every = as_count(where, "record_every", record_every, least=1)
    if record_every > CHUNK:
        raise ValueError(f"{where}: `record_every` is {record_every}, but can be {CHUNK} at most, the iterations of one compiled chunk.")
    rates = np.broadcast_to(np.asarray(learning_rate, float), (runs,)) if np.ndim(learning_rate) == 0 else np.asarray(learning_rate, float)
    if rates.shape != (runs,) or not (np.all(np.isfinite(rates)) and np.all(rates > 0)):
        raise ValueError(f"{where}: `learning_rate` is {learning_rate!r}, but must be one positive, finite number, or one for each run.")
    _check_memory(where, runs, n, m, -(-iterations // record_every) + 1, memory_limit)
    recorded = np.unique(np.append(np.arange(0, iterations, record_every), iterations))

    dtype = np.result_type(*(p.A.dtype for p in problems), *x0s)
    groups = [_Group(problems, x0s, rates, np.array(members), dtype) for members in _by_size(x0s)]
    if resume is None:
        start = np.zeros((runs, m, n)) if K0 is None else np.asarray(as_floats(where, "K0", K0, shape=(runs, m, n), meaning="one K a run"))
        empty = np.full((runs, len(recorded)), np.nan, dtype)
        batch = LQRBatch(
            start.astype(dtype), np.full(runs, Status.finished), np.zeros(runs, int), 0, recorded, empty, empty.copy(), empty.copy()
        )
    elif resume.K.shape != (runs, m, n) or not np.array_equal(resume.recorded, recorded):
        raise ValueError(f"{where}: `resume` belongs to another batch (K {resume.K.shape}, {len(resume.recorded)} records).")
    else:
        batch = resume._replace(**{record: getattr(resume, record).copy() for record in RECORDS})
    intervals = CHUNK // record_every
    while batch.done < iterations:
        batch = _advance(groups, batch, min(intervals * record_every, iterations - batch.done), intervals, record_every)
        if on_chunk is not None:
            on_chunk(batch)
    return batch if iterations else _advance(groups, batch, 0, intervals, record_every)


def _by_size(x0s: list[np.ndarray]) -> list[list[int]]:
    sizes = sorted({len(x) for x in x0s})
    return [[r for r, x in enumerate(x0s) if len(x) == size] for size in sizes]


class _Layout(NamedTuple):
    """How a group's runs lie on the devices: what its program is compiled for, beside the shapes."""

    mesh: Mesh
    horizon: int
    in_lanes: bool
    blocks: int
    block: int

    @classmethod
    def of(cls, runs: int, n: int, m: int, s: int, horizon: int) -> "_Layout":
        """Blocks that fit the cache of a CPU, or that fill a GPU without filling its memory."""
        devices = jax.devices()
        in_lanes = max(n, m) <= SMALL
        cache, memory = LANES if in_lanes else 1, max(GPU_WORKSPACE // (8 * 3 * horizon * s * n), 1)
        most = cache if devices[0].platform == "cpu" else memory
        share = -(-runs // len(devices))
        blocks = -(-share // most)
        block = -(-share // blocks)
        return cls(Mesh(np.array(devices), ("runs",)), horizon, in_lanes, blocks, -(-block // 8) * 8 if in_lanes else block)

    def put(self, values: np.ndarray) -> jax.Array:
        """On the devices, shared out over the runs, filled up with zeros to whole blocks: a system of zeros stays zero."""
        padded = self.mesh.size * self.blocks * self.block
        filled = np.concatenate([values, np.zeros((padded - len(values), *values.shape[1:]), values.dtype)])
        return jax.device_put(filled, NamedSharding(self.mesh, Spec("runs")))


class _Group:
    """The runs whose seen sets have one size: on the host for what happens once, on the devices for what happens in every iteration."""

    def __init__(self, problems: list[LQR], x0s: list[np.ndarray], rates: np.ndarray, members: np.ndarray, dtype: np.dtype):
        self.members, self.problems = members, [problems[r] for r in members]
        stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *self.problems)
        self.x0s = np.stack([x0s[r] for r in members])
        self.dtype = dtype
        stacked = jax.tree.map(lambda M: M.astype(dtype), stacked)
        self.x0s, self.rates = self.x0s.astype(dtype), rates[members].astype(dtype)
        n, m = stacked.state_dim, stacked.control_dim
        self.layout = _Layout.of(len(members), n, m, self.x0s.shape[1], stacked.horizon)
        put, eye = self.layout.put, np.eye(n)
        self.systems = Systems(
            put(stacked.A),
            None if m == n and np.all(eye == stacked.B) else put(stacked.B),
            None if np.all(eye == stacked.Q) else put(stacked.Q),
            None if not stacked.R.any() else put(stacked.R),
            put(self.x0s),
            put(self.rates),
        )
        states, *baselines = _normalizations(stacked, self.x0s)
        self.measured = tuple(put(np.asarray(values, self.dtype)) for values in (np.concatenate([self.x0s, states], axis=1), *baselines))

    def advance(self, K: np.ndarray, count: int, intervals: int, every: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """(K after `count` updates, records before every `every`-th of them and a last one of the K returned) of the group's runs."""
        wide = self.layout.in_lanes and self.layout.mesh.devices.flat[0].platform == "cpu"
        K_after, records = (_advance_wide if wide else _advance_plain)(
            self.layout, self.systems, self.measured, self.layout.put(K), count, intervals=intervals, every=every
        )
        return np.asarray(K_after)[: len(K)], [np.asarray(record)[: len(K)] for record in records]

    def freeze(self, which: np.ndarray) -> None:
        """Without states nothing is learned, and zero states stay zero: a run that has ended keeps its K."""
        self.x0s[which] = 0.0
        self.systems = self.systems._replace(x0s=self.layout.put(self.x0s))


def _advance_group(layout: _Layout, systems: Systems, measured, K, count, *, intervals: int, every: int):
    """One program for any count ≤ intervals · every."""

    def block(systems, measured, K):
        def interval(K, j):
            updates = jnp.clip(count - j * every, 0, every)
            if layout.in_lanes:
                K_after = descend_in_lanes(systems, K, layout.horizon, updates)
            else:
                K_after = jax.vmap(lambda one, K: descend_by_products(one, K, layout.horizon, updates))(systems, K)
            return K_after, _records(layout, systems, measured, K)

        K, records = jax.lax.scan(interval, K, jnp.arange(intervals))
        records = jax.tree.map(lambda record, last: jnp.concatenate([record, last[None]]), records, _records(layout, systems, measured, K))
        return K, records

    def share(*arrays):
        """A device's share: block after block."""
        blocked = jax.tree.map(lambda a: a.reshape(layout.blocks, layout.block, *a.shape[1:]), arrays)
        K, records = jax.lax.map(lambda one: block(*one), blocked)
        return K.reshape(-1, *K.shape[2:]), jax.tree.map(lambda a: jnp.swapaxes(a, 1, 2).reshape(-1, intervals + 1), records)

    runs = Spec("runs")
    return jax.shard_map(share, mesh=layout.mesh, in_specs=(runs,) * 3, out_specs=runs, check_vma=False)(systems, measured, K)


_advance_plain = jax.jit(_advance_group, static_argnums=0, static_argnames=("intervals", "every"))
# Wider vectors than the compiler's default save a third of the time in lanes; the option is the CPU compiler's.
_advance_wide = jax.jit(
    _advance_group, static_argnums=0, static_argnames=("intervals", "every"), compiler_options={"xla_cpu_prefer_vector_width": 512}
)


def _records(layout: _Layout, systems: Systems, measured, K):
    """(J, normalised optimality, normalised cost) of each run: sums of stage costs from the seen states and from those that stand for U."""
    states, optimality, total = measured
    if layout.in_lanes:
        costs = stage_costs_in_lanes(systems, K, states, layout.horizon)
    else:
        costs = jax.vmap(lambda one, K, X: stage_costs_by_products(one, K, X, layout.horizon))(systems, K, states)
    seen = systems.x0s.shape[1]
    J, unseen = costs[:, :, :seen].sum(axis=(1, 2)) / seen, costs[:, 1:, seen:].sum(axis=2)
    return J, unseen[:, 0] / optimality, unseen.sum(axis=1) / total


def _normalizations(problems: LQR, x0s: np.ndarray):
    """`normalization` of each run; NaN where B is not square, for which no measure is defined."""
    if problems.control_dim == problems.state_dim:
        return [np.asarray(values) for values in _normalization_of_each(problems, x0s)]
    runs, n, dtype = len(x0s), problems.state_dim, problems.A.dtype
    return [np.zeros((runs, n, n), dtype), np.full(runs, np.nan, dtype), np.full(runs, np.nan, dtype)]


_normalization_of_each = jax.jit(jax.vmap(normalization))


def _advance(groups: list[_Group], batch: LQRBatch, count: int, intervals: int, every: int) -> LQRBatch:
    K, status, iterations = batch.K.copy(), batch.status.copy(), batch.iterations.copy()
    first = batch.done // every
    made = -(-count // every)
    at_the_end = batch.recorded[-1] == batch.done + count
    for group in groups:
        members = group.members
        K_new, records = group.advance(K[members], count, intervals, every)
        alive = status[members] == Status.finished
        # The cost overflows before the controller does.
        suspect = alive & ~(np.isfinite(K_new).all(axis=(1, 2)) & np.isfinite(records[0]).all(axis=1))
        for record, value in zip(RECORDS, records, strict=True):
            kept = np.where(alive[:, None], value, np.nan)
            getattr(batch, record)[members, first : first + made] = kept[:, :made]
            if at_the_end:
                getattr(batch, record)[members, -1] = kept[:, -1]
        K[members[alive & ~suspect]] = K_new[alive & ~suspect]
        iterations[members[alive]] += count
        ended = []
        for i in np.flatnonzero(suspect):
            r = members[i]
            K[r], updates, diverged = _repeat(group.problems[i], group.x0s[i], group.rates[i], batch.K[r], count)
            if diverged:
                status[r], iterations[r] = Status.diverged, batch.done + updates
                ended.append(i)
                for record in RECORDS:
                    getattr(batch, record)[r, first + -(-(updates + 1) // every) :] = np.nan
        if ended:
            group.freeze(np.array(ended))
    return batch._replace(K=K, status=status, iterations=iterations, done=batch.done + count)


def _repeat(problem: LQR, x0s: np.ndarray, rate: float, K: np.ndarray, count: int) -> tuple[np.ndarray, int, bool]:
    """A chunk of one run by `train_lqr`'s program: the last finite K, the updates made, and whether it diverged."""
    state = LoopState.start(jnp.asarray(K), None, Never())
    while int(state.iteration) < count and int(state.status) != DIVERGED:
        state, _ = advance_lqr(problem, x0s, rate, state, min(CHUNK, count - int(state.iteration)))
    return np.asarray(state.controller), int(state.iteration), int(state.status) == DIVERGED


def _check_memory(where: str, runs: int, n: int, m: int, records: int, limit: float | None) -> None:
    """Records (twice, as one checkpoint is written while the next is made) and matrices on the host and on the devices."""
    needed = 8 * runs * (2 * len(RECORDS) * records + 12 * n * max(n, m))
    free = _free_memory() if limit is None else limit
    if needed > free:
        raise ValueError(
            f"{where}: {runs:,} runs with {records:,} records each need about {needed / 2**30:.2f} GiB, but {free / 2**30:.2f} GiB are "
            "free; record less often (`record_every`), or split the batch."
        )


def _free_memory() -> float:
    """In bytes, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(float(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return math.inf
