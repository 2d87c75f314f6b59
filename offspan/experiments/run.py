"""Runs a spec in its folder: its tasks, those that are not done yet, and ends with a result on disk."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import xarray as xr

from offspan.experiments.checkpoints import Checkpoint
from offspan.experiments.estimate import check_fits
from offspan.experiments.executor import CHECKPOINT_SECONDS, Executor, Here
from offspan.experiments.provenance import provenance
from offspan.experiments.registry import kind, spec_from
from offspan.experiments.spec import Arrays, OnChunk, Spec, to_toml
from offspan.experiments.store import RunFolder


def run(
    spec: Spec,
    root: Path,
    progress: Callable[[float], Any],
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    executor: Executor | None = None,
    doing: Callable[[str], Any] = str,
) -> xr.Dataset:
    """The result of `spec`, in `root/<name>`: found complete, resumed from checkpoints, or made from the start, bit for bit the same.

    `progress` is called with the share done, from 0 to 1, and `doing` with what is being done. Tasks run here, unless an executor is given.
    """
    spec.check()
    folder = RunFolder(root / spec.name)
    if not folder.is_complete() and (executor is None or isinstance(executor, Here)):  # on a cluster, memory is the workers'
        check_fits(spec)
    with jax.enable_x64(spec.precision == "float64"), folder.claimed(spec):
        of_kind = kind(spec.kind)
        tasks = of_kind.tasks(spec)
        if folder.is_complete():
            result = folder.load_result()
            folder.drop_checkpoints(task.name for task in tasks)
            return result
        origin, kept = provenance(spec), _Stored(folder, spec)

        def report(share: float, what: str) -> None:
            doing(what)
            progress(share)

        (executor or Here(checkpoint_seconds)).run(Experiment(spec), tasks, kept, report)
        found = {task.name: kept[task.name] for task in tasks}
        result = of_kind.to_dataset(spec, {name: checkpoint.arrays for name, checkpoint in found.items()})
        seconds = sum(checkpoint.seconds for checkpoint in found.values())
        result = folder.save_result(spec, result, {**origin, "seconds": round(seconds, 1), "tasks": origins(found)})
        folder.drop_checkpoints(task.name for task in tasks)
        return result


@dataclass(frozen=True)
class Experiment:
    """A spec as work for an executor."""

    spec: Spec

    def digest(self) -> str:
        return self.spec.digest()

    def to_text(self) -> str:
        return to_toml(self.spec)

    @classmethod
    def from_text(cls, text: str) -> "Experiment":
        return cls(spec_from(tomllib.loads(text), "the spec"))

    def check_travels(self, this_machine: bool) -> None:
        table: Any = getattr(self.spec, "system", None)
        if hasattr(table, "check_travels"):
            table.check_travels(this_machine)

    def run_task(self, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
        with jax.enable_x64(self.spec.precision == "float64"):
            return kind(self.spec.kind).run_task(self.spec, name, needed, resume, on_chunk)


@dataclass(frozen=True)
class _Stored:
    """The checkpoints of a spec in its folder."""

    folder: RunFolder
    spec: Spec

    def get(self, name: str) -> Checkpoint | None:
        return self.folder.load_checkpoint(self.spec, name)

    def __getitem__(self, name: str) -> Checkpoint:
        checkpoint = self.get(name)
        assert checkpoint is not None  # which the executor saw to
        return checkpoint

    def __setitem__(self, name: str, checkpoint: Checkpoint) -> None:
        self.folder.save_checkpoint(self.spec, name, checkpoint)


def origins(found: Mapping[str, Checkpoint]) -> list[dict[str, Any]]:
    """Each host, processor and device, with the seconds of every task that ran there, and how often one was begun that was begun again."""
    places: dict[str, dict[str, Any]] = {}
    for name, checkpoint in found.items():
        where = {key: value for key, value in checkpoint.origin.items() if key != "attempts"}
        place = places.setdefault(repr(where), {**where, "seconds": {}})
        place["seconds"][name] = round(checkpoint.seconds, 2)
        if (attempts := checkpoint.origin.get("attempts", 1)) > 1:
            place.setdefault("attempts", {})[name] = attempts
    return list(places.values())
