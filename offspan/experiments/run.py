"""Runs a spec in its folder: takes up what is there, keeps what is done, and ends with a result on disk."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import xarray as xr

from offspan.experiments.lqr import distinct_tasks, problem_of, seen_set, shapes, to_dataset
from offspan.experiments.spec import LQRSpec
from offspan.experiments.store import RunFolder, provenance
from offspan.training import LQRBatch, train_lqr_batch

CHECKPOINT_SECONDS = 10.0


def run(spec: LQRSpec, root: Path, progress: Callable[[float], Any], checkpoint_seconds: float = CHECKPOINT_SECONDS) -> xr.Dataset:
    """The result of `spec`, in `root/<name>`: found complete, taken up from its checkpoints, or made from the start; always the same bits.

    `progress` hears the share done, from 0 to 1. An interruption leaves a checkpoint of the last whole chunk.
    """
    if spec.precision == "float64" and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(f"{spec.name} asks for float64, but jax works in float32: call jax.config.update('jax_enable_x64', True) first.")
    folder = RunFolder(root / spec.name)
    folder.claim(spec)
    if folder.is_complete():
        folder.drop_checkpoints()
        return folder.load_result()
    origin = provenance(spec)
    weights = [dim**2 * horizon for dim, horizon in shapes(spec)]  # what an iteration costs
    batches, seconds = [], 0.0
    for part in range(len(weights)):
        before = sum(weights[:part])

        def report(batch: LQRBatch, part=part, before=before) -> None:
            progress((before + weights[part] * batch.done / spec.iterations) / sum(weights))

        batch, spent = _train(spec, folder, part, report, checkpoint_seconds)
        batches.append(batch)
        seconds += spent
    result = to_dataset(spec, batches)
    folder.save_provenance(origin, seconds)
    folder.save_result(result)
    folder.drop_checkpoints()
    return result


def _train(
    spec: LQRSpec, folder: RunFolder, part: int, report: Callable[[LQRBatch], Any], checkpoint_seconds: float
) -> tuple[LQRBatch, float]:
    """The batch of one shape, and the seconds that went into it in all."""
    dim, horizon = shapes(spec)[part]
    tasks, _ = distinct_tasks(spec)
    latest, spent = folder.load_checkpoint(spec, part)
    if latest is not None and latest.done == spec.iterations:
        return latest, spent
    started = saved = time.monotonic()

    def save() -> None:
        if latest is not None:
            folder.save_checkpoint(spec, part, latest, spent + time.monotonic() - started)

    def on_chunk(batch: LQRBatch) -> None:
        nonlocal latest, saved
        latest = batch
        report(batch)
        if time.monotonic() - saved >= checkpoint_seconds:
            save()
            saved = time.monotonic()

    try:
        latest = train_lqr_batch(
            [problem_of(spec, task, dim, horizon) for task in tasks],
            [seen_set(spec, dim, task.seen) for task in tasks],
            learning_rate=[task.learning_rate for task in tasks],
            iterations=spec.iterations,
            record_every=spec.record_every,
            resume=latest,
            on_chunk=on_chunk,
        )
    finally:
        save()
    return latest, spent + time.monotonic() - started
