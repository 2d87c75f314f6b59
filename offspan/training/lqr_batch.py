"""Thousands of linear controllers at once: many runs of one shape, shared out over all devices.

Runs are grouped by the number of their seen states, so that no run computes with states that it does not have, and in each chunk of
iterations every group advances as one compiled program. A run that diverges is found at the end of its chunk, and its chunk is repeated
by `train_lqr`'s own program, which says when it diverged and what its last finite controller was; so both agree on that, too.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from offspan.errors import OffspanError, as_count, as_floats, as_states
from offspan.problems.lqr import LQR, as_lqr
from offspan.training.loop import CHUNK, DIVERGED, LoopState, Never, Status
from offspan.training.lqr import advance_lqr
from offspan.training.lqr_group import RECORDS, Group


class LQRBatch(NamedTuple):
    """Runs r of a batch, `done` iterations in; what a checkpoint has to hold, and at the end the result.

    Records q are of the controllers after `recorded[q]` updates: 0, k, 2k, … and the last. They are NaN where not yet made, where a measure
    is not defined, and for a diverged run after iteration `iterations[r]`, at which it failed; it keeps its last finite K.

    `cost[r, q]` = J(K; S), and `normalized_optimality[r, q]` = E_opt(K) / E_opt(K_no-ext)  [R24, eq:policy_grad, sec:prelim:extrapolation].

    >>> import offspan
    >>> batch = offspan.train_lqr_batch([offspan.shift(2, horizon=2)], [offspan.basis(2, 1)], learning_rate=0.125, iterations=1)
    >>> batch.cost.tolist()  # ∇J(0) = 4 e_2e_1ᵀ + 2 e_1e_2ᵀ, so from e_1 to e_2/2 to 3/8 e_1
    [[3.0, 1.390625]]
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

    Each run is that of [R24, eq:policy_grad]. All problems have one n, m and H; the seen sets may differ in size. `on_chunk` sees the batch
    after each chunk of iterations, and `resume` takes up such a batch again, to the same bits; later chunks fill the same record arrays, so
    copy what you keep longer. `memory_limit` is in bytes, by default what the machine has free.

    >>> import offspan
    >>> systems, seen = [offspan.identity(2, horizon=2), offspan.shift(2, horizon=2)], [offspan.basis(2, 1)] * 2
    >>> batch = offspan.train_lqr_batch(systems, seen, learning_rate=0.125, iterations=1)
    >>> batch.normalized_optimality.tolist()  # the shift comes by e_2, which goes to 3/4 e_1 then; the identity does not
    [[1.0, 1.0], [1.0, 0.5625]]
    """
    where = "train_lqr_batch"
    problems, x0s = list(problems), list(x0s)
    if not problems or len(problems) != len(x0s):
        raise OffspanError(f"{where}: there are {len(problems)} problems and {len(x0s)} seen sets; pass one seen set for each problem.")
    shapes = {(as_lqr(where, p).state_dim, p.control_dim, p.horizon) for p in problems}
    if len(shapes) > 1:
        raise OffspanError(
            f"{where}: the problems have several shapes (n, m, H), {sorted(shapes)}; train each shape in a batch of its own."
        )
    (n, m, _), runs = shapes.pop(), len(problems)
    x0s = [np.asarray(as_states(where, f"x0s[{r}]", x, n)) for r, x in enumerate(x0s)]
    iterations = as_count(where, "iterations", iterations, least=0)
    record_every = as_count(where, "record_every", record_every, least=1)
    if record_every > CHUNK:
        raise OffspanError(f"{where}: `record_every` is {record_every}, but can be {CHUNK} at most, the iterations of one compiled chunk.")
    rates = np.broadcast_to(np.asarray(learning_rate, float), (runs,)) if np.ndim(learning_rate) == 0 else np.asarray(learning_rate, float)
    if rates.shape != (runs,) or not (np.all(np.isfinite(rates)) and np.all(rates > 0)):
        raise OffspanError(f"{where}: `learning_rate` is {learning_rate!r}, but must be one positive, finite number, or one for each run.")
    _check_memory(where, runs, n, m, -(-iterations // record_every) + 1, memory_limit)
    recorded = np.unique(np.append(np.arange(0, iterations, record_every), iterations))

    dtype = np.result_type(*(p.A.dtype for p in problems), *x0s)
    groups = [Group(problems, x0s, rates, np.array(members), dtype) for members in _by_size(x0s)]
    if resume is None:
        start = np.zeros((runs, m, n)) if K0 is None else np.asarray(as_floats(where, "K0", K0, shape=(runs, m, n), meaning="one K a run"))
        empty = np.full((runs, len(recorded)), np.nan, dtype)
        batch = LQRBatch(
            start.astype(dtype), np.full(runs, Status.finished), np.zeros(runs, int), 0, recorded, empty, empty.copy(), empty.copy()
        )
    elif resume.K.shape != (runs, m, n) or not np.array_equal(resume.recorded, recorded):
        raise OffspanError(f"{where}: `resume` belongs to another batch (K {resume.K.shape}, {len(resume.recorded)} records).")
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


def _advance(groups: list[Group], batch: LQRBatch, count: int, intervals: int, every: int) -> LQRBatch:
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
    state = LoopState.start(jnp.asarray(K)[None], None, Never())
    while int(state.iteration[0]) < count and int(state.status[0]) != DIVERGED:
        state, _ = advance_lqr(problem, x0s, rate, state, min(CHUNK, count - int(state.iteration[0])))
    return np.asarray(state.controller[0]), int(state.iteration[0]), int(state.status[0]) == DIVERGED


def _check_memory(where: str, runs: int, n: int, m: int, records: int, limit: float | None) -> None:
    """Records (twice, as one checkpoint is written while the next is made) and matrices on the host and on the devices."""
    needed = 8 * runs * (2 * len(RECORDS) * records + 12 * n * max(n, m))
    free = _free_memory() if limit is None else limit
    if needed > free:
        raise OffspanError(
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
