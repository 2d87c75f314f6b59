"""What a cluster costs and gains: the same tasks here, on one worker and on two, in one run.

    python benchmarks/cluster.py [--quick]

Tasks are sweeps of one system, all of one shape. Each place runs them twice under other names, and the second time counts: everything is
compiled by then. The overhead of a task is what one worker takes longer than this process, over the number of tasks.
"""

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import jax

from offspan.experiments.cluster import Dask
from offspan.experiments.executor import Here
from offspan.experiments.lqr import LQRSpec
from offspan.experiments.run import run

TASKS = 50 if "--quick" in sys.argv else 200
PLACES = ("local:1", "local:2")


def seconds(executor, name: str, iterations: int, folder: Path) -> float:
    content = {"systems": ["gaussian"], "dim": [5], "horizon": [5], "seen": [1], "seeds": TASKS, "learning_rate": [1e-3]}
    spec = LQRSpec.model_validate({**content, "name": name, "iterations": iterations, "seeds_per_task": 1})
    started = time.perf_counter()
    run(spec, folder, lambda share: None, executor=executor)
    return time.perf_counter() - started


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    print(f"{TASKS} tasks of one run each, D = H = 5; {os.cpu_count()} cores")
    print(f"{'iterations':>12}{'place':>10}{'first':>9}{'again':>9}{'a task':>10}{'overhead':>11}{'speed-up':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for iterations in (1_000, 20_000, 200_000)[: 2 if "--quick" in sys.argv else 3]:
            alone = 0.0
            for place in ("here", *PLACES):
                with Dask(place, say=print) if place != "here" else contextlib.nullcontext(Here()) as executor:
                    first, again = (
                        seconds(executor, f"{place.replace(':', '-')}-{iterations}-{i}", iterations, Path(folder)) for i in "ab"
                    )
                alone = again if place == "here" else alone
                overhead = f"{1e3 * (again - alone) / TASKS:>8.1f} ms" if place == "local:1" else ""
                print(
                    f"{iterations:>12,}{place:>10}{first:>7.1f} s{again:>7.1f} s{1e3 * again / TASKS:>7.1f} ms{overhead:>11}"
                    f"{alone / again:>10.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
