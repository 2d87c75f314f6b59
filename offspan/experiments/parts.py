"""Seeds shared out over tasks, and what the tasks trained put together again."""

from collections.abc import Sequence

import numpy as np

from offspan.experiments.spec import Arrays, Spec


def seed_groups(spec: Spec, seeds: Sequence[int]) -> list[list[int]]:
    """The seeds of each task."""
    size = spec.seeds_per_task or len(seeds)
    return [list(seeds[first : first + size]) for first in range(0, len(seeds), size)]


def part_names(name: str, spec: Spec, count: int) -> list[str]:
    """Of so many tasks; where all seeds are one, it keeps the name."""
    return [name] if spec.seeds_per_task is None else [f"{name}-part-{part}" for part in range(count)]


def share_of_steps(done: int, iterations: int, horizons: Sequence[int] | None) -> float:
    """The share of the simulated time steps in the first `done` updates, of which every horizon has as many."""
    if not horizons:
        return done / iterations
    each = iterations / len(horizons)
    made = np.clip(done - each * np.arange(len(horizons)), 0.0, each)
    return float(made @ np.asarray(horizons) / (each * sum(horizons)))


def joined(parts: Sequence[Arrays]) -> Arrays:
    """The arrays of one batch from those of its parts, run after run: `Batch.to_arrays`, without what only a resumed batch needs.

    Batches end when their last run has ended, so that parts may have fewer records than others: NaN in their place.
    """
    if len(parts) == 1:
        return parts[0]
    recorded = np.unique(np.concatenate([part["recorded"] for part in parts]))

    def aligned(part: Arrays, name: str) -> np.ndarray:
        if name != "cost" and not name.startswith("measures."):
            return part[name]
        record = np.full((len(part[name]), len(recorded)), np.nan, part[name].dtype)
        record[:, np.searchsorted(recorded, part["recorded"])] = part[name]
        return record

    together = {name: np.concatenate([aligned(part, name) for part in parts]) for name in _by_run(parts[0])}
    return {**together, "recorded": recorded, "done": parts[0]["done"], "since": parts[0]["since"]}


def select_runs(batch: Arrays, runs: slice) -> Arrays:
    """Some runs of a batch, likewise without what only a resumed batch needs; records end where the last of these runs has ended."""
    some = {name: batch[name][runs] for name in _by_run(batch)}
    kept = batch["recorded"] <= some["iterations"].max()
    shorter = {name: values[:, kept] for name, values in some.items() if name == "cost" or name.startswith("measures.")}
    return {**some, **shorter, "recorded": batch["recorded"][kept], "done": batch["done"], "since": batch["since"]}


def _by_run(batch: Arrays) -> list[str]:
    """The arrays with an axis of runs, but for the state of the loop."""
    return [name for name in batch if name in ("codes", "iterations", "cost") or name.startswith(("weights.", "measures."))]
