"""Runs a spec in its folder: takes up what is there, keeps what is done, and ends with a result on disk."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import xarray as xr

from offspan.experiments import lqr, starts
from offspan.experiments.spec import Spec
from offspan.experiments.store import RunFolder, provenance

CHECKPOINT_SECONDS = 10.0
# A kind of experiment is a module with a State (a named tuple of arrays, `done` iterations in), `train` and `to_dataset`.
KINDS: dict[str, Any] = {"lqr": lqr, "starts": starts}


def run(spec: Spec, root: Path, progress: Callable[[float], Any], checkpoint_seconds: float = CHECKPOINT_SECONDS) -> xr.Dataset:
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
    weights = spec.part_weights()
    states, seconds = [], 0.0
    for part in range(len(weights)):
        before = sum(weights[:part])

        def report(state: Any, part=part, before=before) -> None:
            progress((before + weights[part] * state.done / spec.iterations) / sum(weights))

        state, spent = _train(spec, folder, part, report, checkpoint_seconds)
        states.append(state)
        seconds += spent
    result = KINDS[spec.kind].to_dataset(spec, states)
    folder.save_provenance(origin, seconds)
    folder.save_result(result)
    folder.drop_checkpoints()
    return result


def _train(spec: Spec, folder: RunFolder, part: int, report: Callable[[Any], Any], checkpoint_seconds: float) -> tuple[Any, float]:
    """The state of one part at its end, and the seconds that went into it in all."""
    kind = KINDS[spec.kind]
    latest, spent = folder.load_checkpoint(spec, part, kind.State)
    if latest is not None and latest.done == spec.iterations:
        return latest, spent
    started = saved = time.monotonic()

    def save() -> None:
        if latest is not None:
            folder.save_checkpoint(spec, part, latest, spent + time.monotonic() - started)

    def on_chunk(state: Any) -> None:
        nonlocal latest, saved
        latest = state
        report(state)
        if time.monotonic() - saved >= checkpoint_seconds:
            save()
            saved = time.monotonic()

    try:
        latest = kind.train(spec, part, latest, on_chunk)
    finally:
        save()
    return latest, spent + time.monotonic() - started
