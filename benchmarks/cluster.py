"""What a cluster costs and gains: the same tasks here and on one, two and four workers, in one run.

    python benchmarks/cluster.py [--quick]

Tasks are sweeps of one system, all of one shape. Each place runs them twice under other names, and the second time counts: everything is
compiled by then. The overhead of a task is the time of all workers that is not spent in tasks, over the number of tasks; it has in it what
this process does with each result, and the result of the whole run. Memory is what this process and all workers hold at the end.
"""

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import jax
import psutil

from offspan.experiments.cluster import Dask
from offspan.experiments.executor import Here
from offspan.experiments.lqr import LQRSpec
from offspan.experiments.run import run
from offspan.experiments.store import RunFolder

TASKS = 50 if "--quick" in sys.argv else 200


def seconds(executor, name: str, iterations: int, folder: Path) -> tuple[float, float]:
    """Wall time, and the time that the tasks took on their own."""
    content = {"systems": ["gaussian"], "dim": [5], "horizon": [5], "seen": [1], "seeds": TASKS, "learning_rate": [1e-3]}
    spec = LQRSpec.model_validate({**content, "name": name, "iterations": iterations, "seeds_per_task": 1})
    started = time.perf_counter()
    run(spec, folder, lambda share: None, executor=executor)
    return time.perf_counter() - started, RunFolder(folder / name).provenance()["seconds"]


def memory() -> tuple[float, float]:
    """MiB that this process holds, and that its workers hold together."""
    process = psutil.Process()
    held = [one.memory_info().rss / 2**20 for one in (process, *process.children(recursive=True))]
    return held[0], sum(held[1:])


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    print(f"{TASKS} tasks of one run each, D = H = 5; {os.cpu_count()} cores")
    columns = f"{'iterations':>12}{'place':>10}{'first':>9}{'again':>9}{'in tasks':>10}{'overhead a task':>17}{'speed-up':>10}"
    print(f"{columns}{'memory':>10}{'of workers':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for iterations in (1_000, 20_000):
            alone = 0.0
            for workers in (0, 1, 2, 4):
                place = f"local:{workers}" if workers else "here"
                with Dask(place, say=print) if workers else contextlib.nullcontext(Here()) as executor:
                    first, _ = seconds(executor, f"{workers}-{iterations}-a", iterations, Path(folder))
                    wall, inside = seconds(executor, f"{workers}-{iterations}-b", iterations, Path(folder))
                    ours, theirs = memory()
                alone = alone or wall
                overhead = 1e3 * (wall * max(workers, 1) - inside) / TASKS
                row = f"{iterations:>12,}{place:>10}{first:>7.1f} s{wall:>7.1f} s{inside:>8.1f} s{overhead:>14.1f} ms{alone / wall:>10.2f}"
                print(f"{row}{ours:>6.0f} MiB{theirs:>8.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
