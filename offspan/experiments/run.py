"""Runs a spec in its folder: resumes its tasks from their checkpoints, and ends with a result on disk."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import xarray as xr

from offspan.experiments.registry import kind
from offspan.experiments.spec import Arrays, Spec, Task
from offspan.experiments.store import Checkpoint, RunFolder, provenance

CHECKPOINT_SECONDS = 10.0


def run(spec: Spec, root: Path, progress: Callable[[float], Any], checkpoint_seconds: float = CHECKPOINT_SECONDS) -> xr.Dataset:
    """The result of `spec`, in `root/<name>`: found complete, resumed from checkpoints, or made from the start; always the same bits.

    `progress` is called with the share done, from 0 to 1. An interruption leaves a checkpoint of the last whole chunk.
    """
    spec.check()
    folder = RunFolder(root / spec.name)
    with jax.enable_x64(spec.precision == "float64"), folder.claimed(spec):
        of_kind = kind(spec.kind)
        tasks = of_kind.tasks(spec)
        if folder.is_complete():
            result = folder.load_result()
            folder.drop_checkpoints(task.name for task in tasks)
            return result
        origin = provenance(spec)
        whole, before, seconds = sum(task.weight for task in tasks), 0.0, 0.0
        results: dict[str, Arrays] = {}
        for task in tasks:

            def report(share: float, task=task, before=before) -> None:
                progress((before + task.weight * share) / whole)

            done = _run_task(spec, task, {name: results[name] for name in task.needs}, folder, report, checkpoint_seconds)
            results[task.name] = done.arrays
            before, seconds = before + task.weight, seconds + done.seconds
        result = of_kind.to_dataset(spec, results)
        folder.save_result(result, {**origin, "seconds": round(seconds, 1)})
        folder.drop_checkpoints(task.name for task in tasks)
        return result


def _run_task(
    spec: Spec,
    task: Task,
    needed: Mapping[str, Arrays],
    folder: RunFolder,
    progress: Callable[[float], Any],
    checkpoint_seconds: float,
) -> Checkpoint:
    """The task at its end."""
    latest = folder.load_checkpoint(spec, task.name)
    if latest is not None and latest.share == 1:
        return latest
    spent = latest.seconds if latest else 0.0
    started = saved = time.monotonic()

    def report(share: float, arrays: Arrays) -> None:
        nonlocal latest, saved
        latest = Checkpoint(arrays, share, spent + time.monotonic() - started)
        progress(share)
        if time.monotonic() - saved >= checkpoint_seconds:
            folder.save_checkpoint(spec, task.name, latest)
            saved = time.monotonic()

    try:
        arrays = kind(spec.kind).run_task(spec, task.name, needed, latest.arrays if latest else None, report)
        latest = done = Checkpoint(arrays, 1.0, spent + time.monotonic() - started)
    finally:
        if latest is not None:
            folder.save_checkpoint(spec, task.name, latest)
    return done
