"""Runs a spec in its folder: takes up what is there, keeps what is done, and ends with a result on disk."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import xarray as xr

from offspan.experiments.kinds import lqr, network, selection, starts
from offspan.experiments.specs.base import Spec
from offspan.experiments.store import RunFolder, provenance

CHECKPOINT_SECONDS = 10.0
# A kind of experiment is a module with `state_type(part)` (a named tuple of arrays, `done` iterations in), `train` and `to_dataset`.
KINDS: dict[str, Any] = {"lqr": lqr, "starts": starts, "network": network, "selection": selection}


def run(spec: Spec, root: Path, progress: Callable[[float], Any], checkpoint_seconds: float = CHECKPOINT_SECONDS) -> xr.Dataset:
    """The result of `spec`, in `root/<name>`: found complete, taken up from its checkpoints, or made from the start; always the same bits.

    `progress` hears the share done, from 0 to 1. An interruption leaves a checkpoint of the last whole chunk.
    """
    folder = RunFolder(root / spec.name)
    with jax.enable_x64(spec.precision == "float64"), folder.claimed(spec):
        return _result(spec, folder, progress, checkpoint_seconds)


def _result(spec: Spec, folder: RunFolder, progress: Callable[[float], Any], checkpoint_seconds: float) -> xr.Dataset:
    if folder.is_complete():
        result = folder.load_result()
        folder.drop_checkpoints()
        return result
    origin = provenance(spec)
    weights = spec.part_weights()
    states, seconds = [], 0.0
    for part in range(len(weights)):
        before = sum(weights[:part])

        def report(state: Any, part=part, before=before) -> None:
            progress((before + weights[part] * state.done / spec.iterations) / sum(weights))

        state, spent = _train(spec, folder, part, states, report, checkpoint_seconds)
        states.append(state)
        seconds += spent
    result = KINDS[spec.kind].to_dataset(spec, states)
    folder.save_result(result, {**origin, "seconds": round(seconds, 1)})
    folder.drop_checkpoints()
    return result


def _train(
    spec: Spec, folder: RunFolder, part: int, earlier: list[Any], report: Callable[[Any], Any], checkpoint_seconds: float
) -> tuple[Any, float]:
    """The state of one part at its end, and the seconds that went into it in all."""
    kind = KINDS[spec.kind]
    latest, spent = folder.load_checkpoint(spec, part, kind.state_type(part))
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
        latest = kind.train(spec, part, earlier, latest, on_chunk)
    finally:
        save()
    return latest, spent + time.monotonic() - started
