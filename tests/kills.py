"""Real runs of three kinds, each killed by SIGKILL at random moments and resumed until it ends: the same bits, nothing lost.

    python tests/kills.py [--kills 20] [--seed 0]

It takes some minutes, so it is no part of `make test`; `make harden` runs it.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from offspan.experiments.registry import load_spec
from offspan.experiments.store import RunFolder

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
}
RUN = """
import sys, jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)
from pathlib import Path
from offspan.experiments.registry import load_spec
from offspan.experiments.run import run
run(load_spec(Path(sys.argv[1])), Path(sys.argv[2]), lambda share: None, checkpoint_seconds=0.2)
"""


def start(spec: Path, root: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", RUN, str(spec), str(root)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="for each kind of run")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        for name, text in SPECS.items():
            spec = Path(place) / f"{name}.toml"
            spec.write_text(text)
            began = time.monotonic()
            assert start(spec, Path(place) / "whole").wait() == 0
            length = time.monotonic() - began
            whole = RunFolder(Path(place) / "whole" / name).load_result()

            root = Path(place) / "killed"
            folder, kills, starts, states = RunFolder(root / name), 0, 0, []
            while kills < asked.kills:
                process = start(spec, root)
                starts += 1
                try:
                    # From the first import to past the end: a run that ends before is begun anew.
                    process.wait(rng.uniform(0.0, 1.1 * length))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    kills += 1
                    states.append(folder.state() if folder.spec_file.exists() else "not begun")
                if folder.is_complete():
                    assert folder.load_result().identical(whole), "other bits"
                    root = Path(place) / f"killed-{kills}"
                    folder = RunFolder(root / name)
            assert start(spec, root).wait() == 0
            assert load_spec(folder.spec_file).digest() == load_spec(spec).digest()
            assert folder.load_result().identical(whole), "other bits"
            left = sorted(path.name for path in folder.path.iterdir())
            assert left == ["provenance.json", "result.nc", "spec.toml"], left
            print(
                f"{name}: {kills} kills in {starts + 1} starts of a run of {length:.0f} s, the same bits; when killed: {', '.join(states)}"
            )


if __name__ == "__main__":
    main()
