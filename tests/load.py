"""Large experiments as a person runs them: time, memory, progress, or a refusal that comes at once.

    python tests/load.py [NAME…] [--minute 60]

It takes half an hour and some gigabytes, so it is no part of `make test`; `make harden` runs it.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

OFFSPAN = [sys.executable, "-c", "from offspan.cli import main; main()"]
SWEEP = """
systems = ["gaussian"]
dim = [5]
horizon = [5]
seen = [1]
learning_rate = [1e-3]
seeds = 100_000
iterations = 200
"""
NETWORK = """
kind = "network"
problem = "pendulum"
iterations = 75_000
precision = "float32"
policy_gradient = { optimizer = "gradient-descent", learning_rate = 5e-4 }
minimal_cost = { optimizer = "gradient-descent", learning_rate = 5e-4 }
non_extrapolating = { optimizer = "adam", learning_rate = 3e-4, targets = [[0.0]] }
"""
STATES = "seen_states = [[2.641], [3.641]]\nunseen_states = [[0.0], [0.785]]\n"
REFUSED = {
    "dim": SWEEP.replace("dim = [5]", "dim = [100000]"),
    "horizon": SWEEP.replace("horizon = [5]", "horizon = [9999999999]"),
    "dims": SWEEP.replace("dim = [5]", f"dim = {list(range(1, 3001))}"),
    "product": SWEEP.replace("[1e-3]", str([i / 1000 for i in range(1, 101)])).replace("iterations = 200", "iterations = 2_000"),
}
WATCHED = """
import sys, time
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)
from pathlib import Path
from offspan.experiments.registry import load_spec
from offspan.experiments.run import run
began = time.monotonic()
run(load_spec(Path(sys.argv[1])), Path("runs"), lambda share: print(f"{time.monotonic() - began:.1f} {share:.6f}", flush=True))
"""


def measured(command: list[str], end: Callable[[subprocess.Popen], None] | None = None) -> tuple[int, float, float, str]:
    """Exit code, seconds, peak memory in GiB, and what was said; `end` may end the process."""
    with tempfile.TemporaryFile("w+") as said:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        if end is not None:
            end(process)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return process.returncode, time.monotonic() - began, usage.ru_maxrss / 2**20, said.read()


def sweep() -> None:
    Path("sweep.toml").write_text(SWEEP)
    code, seconds, peak, said = measured([*OFFSPAN, "run", "sweep.toml"])
    assert code == 0, said
    assert peak < 4, peak
    print(f"100,000 LQR runs: {seconds:.0f} s, {peak:.2f} GiB")


def networks(minute: float) -> None:
    """2,000 seeds for a minute: progress, a checkpoint, and an answer to Ctrl-C."""
    Path("many.toml").write_text(NETWORK + STATES + "seeds = 2_000\n")
    answered = 0.0

    def stop(process: subprocess.Popen) -> None:
        nonlocal answered
        time.sleep(minute)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.1)
        answered = time.monotonic() - began

    _, _, peak, said = measured([sys.executable, "-c", WATCHED, "many.toml"], stop)
    told = re.findall(r"^(\d+\.\d) (\d\.\d+)$", said, re.MULTILINE)
    moved = [float(second) for second, share in told if float(share) > 0]
    kept = sum(path.stat().st_size for path in Path("runs/many/checkpoint").glob("*.npz"))
    assert moved, said
    assert kept
    assert float(told[0][0]) < 10, "the first sign comes late"
    assert answered < 10, "Ctrl-C is not answered"
    print(
        f"2,000 network seeds: first sign after {told[0][0]} s, progress after {moved[0]:.0f} s and {len(moved)} times, {peak:.2f} GiB, "
        f"Ctrl-C answered after {answered:.1f} s, checkpoint of {kept / 2**20:.0f} MiB"
    )


def map_of_a_million() -> None:
    Path("one.toml").write_text(NETWORK.replace("75_000", "5") + STATES + "seeds = 1\nbaseline_seeds = [0]\n")
    code, _, _, said = measured([*OFFSPAN, "run", "one.toml"])
    assert code == 0, said
    code, seconds, peak, said = measured([*OFFSPAN, "map", "one", "--points", "1000"])
    assert code == 0, said
    print(f"a map of 1000 × 1000: {seconds:.0f} s, {peak:.2f} GiB")


def choice() -> None:
    """20 of 10,000."""
    rows = np.random.default_rng(0).uniform(-3, 3, (10_000, 2)).round(6).tolist()
    for method in ("gramian-logdet", "farthest", "alignment"):
        Path("choose.toml").write_text(NETWORK + f'[choose]\nk = 20\nmethod = "{method}"\ncandidates = {rows}\n')
        code, seconds, peak, said = measured([*OFFSPAN, "select", "choose.toml"])
        assert code == 0, said
        assert peak < 4, peak
        print(f"20 of 10,000 candidates by {method}: {seconds:.0f} s, {peak:.2f} GiB", flush=True)


def refusals() -> None:
    for name, text in REFUSED.items():
        Path(f"{name}.toml").write_text(text)
        code, seconds, peak, said = measured([*OFFSPAN, "run", f"{name}.toml"])
        assert code == 2, said
        assert "need about" in said
        print(f"refused after {seconds:.0f} s, {peak:.2f} GiB: {said.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["refusals", "sweep", "networks", "map", "choice"])
    parser.add_argument("--minute", type=float, default=60.0, help="seconds before Ctrl-C")
    asked = parser.parse_args()
    campaigns = {
        "refusals": refusals,
        "sweep": sweep,
        "networks": lambda: networks(asked.minute),
        "map": map_of_a_million,
        "choice": choice,
    }
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for name in asked.names:
            campaigns[name]()


if __name__ == "__main__":
    main()
