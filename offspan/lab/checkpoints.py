"""The pendulum's networks on the page: policy gradient at several moments of its training, and the controller that does not extrapolate.

`python -m offspan.lab.checkpoints` trains the preset again up to the last checkpoint, checks that its costs are those of the stored result,
takes the final networks from there, and writes `pendulum.json` beside this file.
"""

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

import offspan
from offspan.controllers import MLP
from offspan.errors import OffspanError
from offspan.experiments.network import NetworkSpec, layers_of, make
from offspan.experiments.registry import load_preset
from offspan.experiments.store import RunFolder
from offspan.files import atomic_write_text
from offspan.lab.data import packed, stored_layers
from offspan.training import train_batch

SEEDS = (2, 0, 1)  # the one that the figures show, one like it, and one that extrapolates less
ITERATIONS = (0, 100, 1_000, 5_000)
STORED = Path(__file__).parents[2] / "docs" / "results" / "pendulum"
TARGET = Path(__file__).parent / "pendulum.json"


def checkpoints(spec: NetworkSpec, result: xr.Dataset) -> list[dict[str, Any]]:
    """Networks with their objective, seed and iteration; none but the last has gone through a stopping rule."""
    problem, seen, _, _ = make(spec)
    found, places = [], [(list(spec.seeds).index(seed), seed) for seed in SEEDS]
    starts = [spec.first_controller(problem, seed) for seed in spec.seeds]  # all of them: how a batch is split changes the rounding
    for iteration in ITERATIONS:
        batch = train_batch(problem, starts, seen, optimizer=spec.policy_gradient.transformation(), iterations=iteration)
        stored = result.policy_gradient_curve.sel(iteration=iteration)
        if not np.allclose(batch.cost[:, -1], stored, rtol=1e-3):
            raise OffspanError(
                f"the costs after {iteration} iterations are {batch.cost[:, -1]}, but the stored result has {stored.values}."
            )
        layers = [(np.asarray(W), np.asarray(b)) for W, b in layers_of(batch)]
        found += [_entry("policy_gradient", seed, iteration, [(W[r], b[r]) for W, b in layers]) for r, seed in places]
    for seed in SEEDS:
        last = int(result.policy_gradient_iterations.sel(seed=seed))
        found.append(_entry("policy_gradient", seed, last, stored_layers(result, "policy_gradient", seed)))
    shown = int(result.shown_baseline_seed)
    last = int(result.non_extrapolating_iterations.sel(baseline_seed=shown))
    found.append(_entry("non_extrapolating", shown, last, stored_layers(result, "non_extrapolating", shown)))
    return found


def _entry(objective: str, seed: int, iteration: int, layers: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    MLP(layers)  # whose shapes fit together
    return {"objective": objective, "seed": seed, "iteration": iteration, "layers": packed(layers)}


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 2)  # as the stored result was made, so that this is the same training
    spec = load_preset("pendulum")
    assert isinstance(spec, NetworkSpec)
    folder = RunFolder(STORED)
    content = {
        "provenance": {
            "offspan": offspan.__version__,
            "jax": jax.__version__,
            "processor": platform.machine(),
            "what": "preset pendulum; final networks from docs/results/pendulum/result.nc, the others trained again; weights in float16",
            "result": hashlib.sha256(folder.result_file.read_bytes()).hexdigest(),
        },
        "networks": checkpoints(spec, folder.load_result()),
    }
    atomic_write_text(TARGET, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
