"""Real commands of eight kinds, each killed by SIGKILL at random moments and started again until it ends: the same bits, nothing lost.

    python tests/kills.py [--kills 25] [--seed 0] [--only drawing,reporting] [--jobs 2]

Experiments are killed in training, and in saving checkpoints; commands in drawing, reporting, choosing and auditing. It takes half an hour,
so it is no part of `make test`; `make harden` runs it.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from offspan.experiments.store import RunFolder

ROOT = Path(__file__).parents[1]
SPECS = {
    "sweep": """
systems = ["identity", "shift", "gaussian", "gaussian-abq"]
dim = [4, 5]
horizon = [4, 6]
seen = [1, 2]
seeds = 5
learning_rate = [1e-3, 1e-2]
iterations = 100_000
""",
    "network": """
kind = "network"
problem = "pendulum"
settings = { horizon = 30 }
seeds = [0, 1, 2]
baseline_seeds = [0, 1]
iterations = 8_000
precision = "float32"
width = 20
seen_states = [[2.6, 0.0], [3.6, 0.0]]
unseen_states = [[1.57, 0.0], [4.71, 0.0]]
policy_gradient = { optimizer = "gradient-descent", learning_rate = 5e-4 }
minimal_cost = { optimizer = "adam", learning_rate = 3e-4 }
non_extrapolating = { optimizer = "adam", learning_rate = 3e-4, targets = [[0.0, 0.0]] }
""",
    "selection": """
kind = "selection"
problem = "gaussian"
dim = 5
horizon = 5
seeds = 6
choose = 2
iterations = 40_000
pilot_iterations = 2_000
methods = ["farthest", "gramian-logdet", "pilot", "adaptive"]
policy_gradient = { optimizer = "gradient-descent", learning_rate = 1e-3 }
""",
    "choosing": """
systems = ["gaussian"]
dim = [6]
horizon = [6]
learning_rate = [1e-3]
iterations = 1_000
[choose]
k = 2
method = "pilot"
""",
    "auditing": """
seen_states = [[1.0, 0.0]]
states = 100
points = 9
[system]
problem = "pendulum"
[controller]
gain = [[-8.0, -3.0]]
[region]
0 = [2.0, 4.0]
1 = [-1.0, 1.0]
""",
}
SPECS["saving"] = SPECS["sweep"].replace("100_000", "30_000")
RUN = """
import sys, jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)
from pathlib import Path
from offspan.experiments.registry import load_spec
from offspan.experiments.run import run
run(load_spec(Path(sys.argv[1])), Path("runs"), lambda share: None, checkpoint_seconds=float(sys.argv[2]))
"""
FINISHED = ("lqr-random-abq", "shift-regularized")


class Kind(NamedTuple):
    """A command, the share of its time after which it may be killed, and the files that it leaves at the end."""

    command: list[str]
    since: float
    left: set[str]


def experiment(name: str, checkpoint_seconds: float) -> Kind:
    files = {f"runs/{name}/{file}" for file in ("spec.toml", "result.nc", "provenance.json")}
    return Kind(["-c", RUN, f"{name}.toml", str(checkpoint_seconds)], 0.0, files)


def offspan(*arguments: str, left: set[str]) -> Kind:
    """A command of which the first seconds, when it is imported, are left alone."""
    return Kind(["-c", "from offspan_command import main; main()", *arguments], 0.3, left)


FIGURES = {"curves.csv", "curves.pdf", "curves.png", "measures.csv", "measures.pdf", "measures.png", "table.md", "table.tex"}
KINDS = {
    "sweep": experiment("sweep", 0.2),
    "network": experiment("network", 0.2),
    "selection": experiment("selection", 0.2),
    "saving": experiment("saving", 0.0),
    "drawing": offspan("reproduce", FINISHED[0], left={f"runs/{FINISHED[0]}/figures/{name}" for name in FIGURES}),
    "reporting": offspan("report", left={"runs/report.html"}),
    "choosing": offspan("select", "choosing.toml", "--output", "chosen.toml", left={"chosen.toml"}),
    "auditing": offspan("audit", "auditing.toml", left={"auditing.html"}),
}


def new_place(path: Path) -> Path:
    """A folder with all specs, and two finished runs."""
    path.mkdir()
    for name, text in SPECS.items():
        (path / f"{name}.toml").write_text(text)
    for name in FINISHED:
        (path / "runs" / name).mkdir(parents=True)
        for file in ("spec.toml", "result.nc", "provenance.json"):
            shutil.copy(ROOT / "docs" / "results" / name / file, path / "runs" / name / file)
    return path


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def start(kind: Kind, place: Path) -> subprocess.Popen:
    # matplotlib writes the date into a PDF, unless told another.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "0", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *kind.command], cwd=place, env=environment, stdout=subprocess.DEVNULL)


def same(name: str, place: Path, whole: Path) -> bool:
    """Whether a file is as in the run that was not killed; the provenance has other seconds."""
    if name.endswith("provenance.json"):
        return RunFolder((place / name).parent).provenance().keys() == RunFolder((whole / name).parent).provenance().keys()
    if name.endswith("result.nc"):
        ours, theirs = (RunFolder((folder / name).parent).load_result() for folder in (place, whole))
        return ours.identical(theirs)
    return (place / name).read_bytes() == (whole / name).read_bytes()


def campaign(kind: Kind, root: Path, kills: int, wait: Callable[[float, float], float]) -> tuple[float, int, int]:
    """The seconds that the command takes, how often it was started, and how many of the kills left something unfinished behind."""
    whole = new_place(root / "whole")
    given = contents(whole)
    began = time.monotonic()
    assert start(kind, whole).wait() == 0
    length = time.monotonic() - began
    assert contents(whole).keys() == given.keys() | kind.left, contents(whole).keys() ^ (given.keys() | kind.left)

    def check(place: Path) -> bool:
        """Nothing that was there is lost, and whatever has a name of its own is whole; whether there is more than that."""
        found = contents(place)
        assert {name: found.get(name) for name in given} == given, "a file was changed or lost"
        for name in kind.left & found.keys():
            assert same(name, place, whole), f"{name} is not whole"
        return bool(found.keys() - given.keys() - kind.left)

    place, is_new, starts, unfinished = new_place(root / "killed-0"), True, 0, 0
    for count in range(1, kills + 1):
        while True:
            process, begun = start(kind, place), time.monotonic()
            starts += 1
            try:
                assert process.wait(wait(kind.since * length, 1.05 * length)) == 0
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                unfinished += check(place)
                is_new = False
                break
            if is_new:  # it was measured when the machine had more to do
                length = min(length, time.monotonic() - begun)
            assert not check(place), sorted(contents(place))
            place, is_new = new_place(root / f"killed-{count}-{starts}"), True  # one that ends before it is killed is begun anew
    assert start(kind, place).wait() == 0
    assert not check(place), sorted(contents(place))
    assert kind.left <= contents(place).keys()
    return length, starts + 1, unfinished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25, help="of each kind of command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(KINDS), help="some of the kinds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="kinds at a time")
    asked = parser.parse_args()

    def found(name: str) -> str:
        with tempfile.TemporaryDirectory() as root:
            length, starts, unfinished = campaign(KINDS[name], Path(root), asked.kills, random.Random(asked.seed).uniform)
        return (
            f"{name}: {asked.kills} kills in {starts} starts of a command of {length:.0f} s, {unfinished} of them with something left to "
            "resume or to remove; the same bits, nothing lost."
        )

    with ThreadPoolExecutor(asked.jobs) as pool:
        for sentence in pool.map(found, asked.only.split(",")):
            print(sentence, flush=True)


if __name__ == "__main__":
    main()
