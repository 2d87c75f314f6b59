"""Where tasks run: in this process, one after another (`Here`), or on a cluster (`offspan.experiments.cluster`)."""

import importlib.metadata
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

import offspan
from offspan.experiments.checkpoints import Checkpoint
from offspan.experiments.spec import Arrays, OnChunk, Task

CHECKPOINT_SECONDS = 10.0
Progress = Callable[[float, str], Any]  # called with the share done, from 0 to 1, and what is being done


@runtime_checkable
class Work(Protocol):
    """What is cut into tasks. It goes to another process as text, from which `from_text` makes it there."""

    def digest(self) -> str: ...

    def to_text(self) -> str: ...

    def check_travels(self, this_machine: bool) -> None:
        """Raises where it names what other processes, or other machines, do not have."""
        ...

    def run_task(self, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
        """The result of a task, from the results that it needs and from where it was left."""
        ...


@runtime_checkable
class CheckpointStore(Protocol):
    """Where the checkpoints of tasks are kept: a dict, or a folder."""

    def get(self, name: str, /) -> Checkpoint | None: ...

    def __setitem__(self, name: str, checkpoint: Checkpoint, /) -> None: ...


@runtime_checkable
class Executor(Protocol):
    """A place where tasks run. The same tasks have the same results on every one."""

    def run(self, work: Work, tasks: Sequence[Task], kept: CheckpointStore, progress: Progress) -> None:
        """Runs all tasks in dependency order and stores each result as it completes."""
        ...


@dataclass(frozen=True)
class Here:
    """In this process. A task that is interrupted leaves a checkpoint of its last whole chunk, and resumes from it."""

    checkpoint_seconds: float = CHECKPOINT_SECONDS
    say: Callable[[str], Any] = warnings.warn  # called with sentences for the person who waits

    def run(self, work: Work, tasks: Sequence[Task], kept: CheckpointStore, progress: Progress) -> None:
        whole, before = sum(task.weight for task in tasks), 0.0
        for task in tasks:

            def report(share: float, task=task, before=before) -> None:
                progress((before + task.weight * share) / whole, task.name)

            self._finish(work, task, kept, report)
            before += task.weight

    def _finish(self, work: Work, task: Task, kept: CheckpointStore, progress: Callable[[float], Any]) -> None:
        latest = kept.get(task.name)
        if is_done(latest):
            return
        say_begun_with(task.name, latest, self.say)
        progress(0.0 if latest is None else latest.share)
        saved = time.monotonic()

        def on_chunk(checkpoint: Checkpoint) -> None:
            nonlocal latest, saved
            latest = checkpoint
            progress(checkpoint.share)
            if time.monotonic() - saved >= self.checkpoint_seconds:
                kept[task.name] = checkpoint
                saved = time.monotonic()

        try:
            latest = execute(work, task.name, needed(task, kept), latest, on_chunk)
        finally:
            if latest is not None:
                kept[task.name] = latest


def is_done(checkpoint: Checkpoint | None) -> bool:
    return checkpoint is not None and checkpoint.share == 1


def needed(task: Task, kept: CheckpointStore) -> dict[str, Arrays]:
    """The results of the tasks that this one needs, which are there."""
    found = {name: kept.get(name) for name in task.needs}
    return {name: checkpoint.arrays for name, checkpoint in found.items() if checkpoint is not None}


def execute(
    work: Work, name: str, needed: Mapping[str, Arrays], latest: Checkpoint | None, on_chunk: Callable[[Checkpoint], Any]
) -> Checkpoint:
    """A task at its end, from where it was left."""
    spent, started = latest.seconds if latest else 0.0, time.monotonic()
    seconds = lambda: spent + time.monotonic() - started  # noqa: E731
    resume = latest.arrays if latest else None
    earlier = {} if (other := begun_with(latest)) is None else {"begun_with": other}
    so_far = {"versions": versions_text(), **earlier}
    arrays = work.run_task(name, needed, resume, lambda share, arrays: on_chunk(Checkpoint(arrays, share, seconds(), so_far)))
    return Checkpoint(arrays, 1.0, seconds(), {**_origin(), **earlier})


def versions() -> dict[str, str]:
    """Of what the bits of a result depend on."""
    packages = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "scipy", "equinox", "optax")}
    return {"offspan": offspan.__version__, **packages, "Python": ".".join(platform.python_version_tuple()[:2])}


def versions_text() -> str:
    return ", ".join(f"{name} {version}" for name, version in versions().items())


def say_begun_with(name: str, latest: Checkpoint | None, say: Callable[[str], Any]) -> None:
    if (other := begun_with(latest)) is not None:
        say(f"{name} was begun with {other} and goes on with {versions_text()}: its bits may differ from a run with either.")


def begun_with(latest: Checkpoint | None) -> str | None:
    """The versions that a task was begun with, where they are others than those of this process."""
    metadata = {} if latest is None else latest.origin
    other = metadata.get("begun_with", metadata.get("versions"))
    return None if other in (None, versions_text()) else other


def _origin() -> dict[str, str]:
    device = jax.devices()[0]
    return {"host": platform.node(), "processor": _processor(), "device": f"{device.platform}, {device.device_kind}"}


@cache
def _processor() -> str:
    """The name of its model, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
