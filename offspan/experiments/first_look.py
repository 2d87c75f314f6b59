"""The paper's central effect in half a minute: its main LQR figure with a quarter of the seeds and a fifth of the iterations."""

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import xarray as xr

from offspan.baselines import minimal_cost
from offspan.controllers import Linear
from offspan.measures import normalized_cost, normalized_optimality
from offspan.problems import LQR, gaussian, identity, shift
from offspan.rollout import cost
from offspan.states import basis
from offspan.training import Status, train_lqr

DIM = HORIZON = 5
SEEN = (1, 2, 3, 4)
SEEDS = (0, 1, 2, 3, 4)
LEARNING_RATE = 1e-3
ITERATIONS = 20_000
SYSTEMS = ("identity", "shift", "gaussian")
RECORDS = ("normalized_optimality", "normalized_cost", "excess_training_cost")


def first_look(progress: Callable[[int, int], Any]) -> xr.Dataset:
    """Trains on e_1..e_n for each system, n and seed; `progress` hears how many of how many runs are done.

    The identity and the shift do not depend on the seed: one run serves all seeds. A diverged run has measures +∞.
    """
    shape = len(SYSTEMS), len(SEEN), len(SEEDS)
    records = {name: np.full(shape, np.inf) for name in RECORDS}

    def train_and_measure(task):
        (system, seeds, problem), (i, count) = task
        x0s = basis(DIM, count)
        run = train_lqr(problem, x0s, learning_rate=LEARNING_RATE, iterations=ITERATIONS)
        if run.status is not Status.diverged:
            at = SYSTEMS.index(system), i, seeds
            records["normalized_optimality"][at] = normalized_optimality(problem, run.K, x0s)
            records["normalized_cost"][at] = normalized_cost(problem, run.K, x0s)
            records["excess_training_cost"][at] = cost(problem, Linear(run.K), x0s) - minimal_cost(problem, x0s)

    tasks = list(itertools.product(_problems(), enumerate(SEEN)))
    # One small run keeps one core busy, and compiled code runs outside Python's lock: a thread for each core.
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for done, _ in enumerate(pool.map(train_and_measure, tasks), start=1):
            progress(done, len(tasks))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, no further run begins
    return xr.Dataset(
        {name: (("system", "seen", "seed"), values) for name, values in records.items()},
        coords={"system": list(SYSTEMS), "seen": list(SEEN), "seed": list(SEEDS)},
        attrs={"dim": DIM, "horizon": HORIZON, "learning_rate": LEARNING_RATE, "iterations": ITERATIONS},
    )


def _problems() -> Iterator[tuple[str, int | slice, LQR]]:
    """(system, the seeds that it stands for, problem)."""
    yield "identity", slice(None), identity(DIM, horizon=HORIZON)
    yield "shift", slice(None), shift(DIM, horizon=HORIZON)
    for i, seed in enumerate(SEEDS):
        yield "gaussian", i, gaussian(jax.random.key(seed), DIM, horizon=HORIZON)
