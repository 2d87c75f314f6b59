"""A sweep of 208 tasks on four workers, of which two are killed by SIGKILL, and then the client: the same bits as without a cluster.

    python tests/cluster_kills.py [--seed 0]

It takes some minutes, so it is no part of `make test`; `make harden` runs it.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from offspan.experiments.registry import kind, load_spec
from offspan.experiments.store import RunFolder

SPEC = """
systems = ["gaussian", "gaussian-abq"]
dim = [4]
horizon = [3, 4, 5, 6]
seen = [1]
seeds = 52
learning_rate = [1e-3]
iterations = 50_000
seeds_per_task = 1
"""
RUN = """
import sys
from collections import deque
from pathlib import Path
import jax
from offspan.experiments.cluster import Dask
from offspan.experiments.executor import Here
from offspan.experiments.registry import load_spec
from offspan.experiments.run import run

class Logged(deque):
    def append(self, told):
        if told["begins"]:
            with open(sys.argv[4], "a") as log:
                print(told["task"], file=log)
        super().append(told)

def main():
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", 2)
    place, spec, root = sys.argv[1], load_spec(Path(sys.argv[2])), Path(sys.argv[3])
    if place == "here":
        return run(spec, root, lambda share: None)
    with Dask(place, say=lambda sentence: print(sentence, flush=True)) as executor:
        executor._told = Logged()
        run(spec, root, lambda share: None, executor=executor)

main()
"""


def start(place: str, spec: Path, root: Path, log: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", RUN, place, str(spec), str(root), str(log)])


def finished(folder: RunFolder) -> set[str]:
    return {path.stem for path in folder.checkpoints.glob("[!.]*.npz")}


def workers(process: subprocess.Popen) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]


def wait_for(process: subprocess.Popen, folder: RunFolder, count: int) -> None:
    while len(finished(folder)) < count:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)


def begun(log: Path) -> Counter[str]:
    return Counter(log.read_text().split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    rng = random.Random(parser.parse_args().seed)
    with tempfile.TemporaryDirectory() as place:
        spec, log = Path(place) / "sweep.toml", Path(place) / "begun.txt"
        spec.write_text(SPEC)
        tasks = {task.name for task in kind("lqr").tasks(load_spec(spec))}
        assert len(tasks) >= 200
        began = time.monotonic()
        assert start("here", spec, Path(place) / "whole", log).wait() == 0
        alone = time.monotonic() - began
        whole = RunFolder(Path(place) / "whole" / "sweep").load_result()

        folder = RunFolder(Path(place) / "killed" / "sweep")
        first, second, third = sorted(rng.sample(range(10, len(tasks) - 10), 3))
        began = time.monotonic()
        process = start("local:4", spec, folder.path.parent, log)
        for count in (first, second):
            wait_for(process, folder, count)
            time.sleep(rng.uniform(0.0, 0.3))
            rng.choice(workers(process)).kill()
        wait_for(process, folder, third)
        time.sleep(rng.uniform(0.0, 0.3))
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive, "workers outlived their client"
        done, before = finished(folder), begun(log)
        assert third <= len(done) < len(tasks)

        assert start("local:4", spec, folder.path.parent, log).wait() == 0
        after = begun(log) - before
        assert not done & set(after), "a finished task was run again"
        assert set(before + after) == tasks
        assert folder.load_result().identical(whole), "other bits"
        left = sorted(path.name for path in folder.path.iterdir())
        assert left == ["provenance.json", "result.nc", "spec.toml"], left
        told = [place.get("attempts", {}) for place in folder.provenance()["tasks"]]
        by_workers, by_client = sum((before - Counter(tasks)).values()) + sum((after - Counter(tasks)).values()), set(before) & set(after)
        print(
            f"{len(tasks)} tasks on four workers, {time.monotonic() - began:.0f} s ({alone:.0f} s without a cluster): workers killed when "
            f"{first} and {second} were finished, the client when {len(done)} were; the same bits, none lost. Begun again: {by_workers} "
            f"with their workers, {len(by_client)} with the client; the provenance tells of {sum(map(len, told))}."
        )


if __name__ == "__main__":
    main()
