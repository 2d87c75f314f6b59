"""What happens on a worker of a cluster: its share of the machine, and one task after another, from text and bytes to bytes.

For workers that you start yourself: `dask worker … --nthreads 1 --preload offspan.experiments.worker`.
"""

import ctypes
import json
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax

from offspan.errors import OffspanError
from offspan.experiments.checkpoints import pack, unpack
from offspan.experiments.executor import Work, execute, versions
from offspan.experiments.programs import keep_programs
from offspan.experiments.run import Experiment
from offspan.experiments.verifying import Verification

WORKS: dict[str, Any] = {work.__name__: work for work in (Experiment, Verification)}
CORES = "OFFSPAN_CORES"  # those that a worker of `local:N` may use
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_one_at_a_time = threading.Lock()


def environments(workers: int, cores: Sequence[int], gpus: Sequence[str]) -> list[dict[str, str]]:
    """The variables of each worker of one machine: a GPU for each, where there are any, and its share of the cores.

    XLA takes the number of its threads from NPROC, not from OMP_NUM_THREADS.
    """
    count = min(workers, len(gpus)) if gpus else workers
    found = []
    for i in range(count):
        own = cores[i::count] or [cores[i % len(cores)]]
        gpu = {"CUDA_VISIBLE_DEVICES": gpus[i]} if gpus else {}
        found.append({"NPROC": str(len(own)), CORES: ",".join(map(str, own)), **gpu})
    return found


def dask_setup(worker: Any) -> None:
    """Called by Dask when the worker starts, which is before jax starts its threads."""
    _keep_memory()
    os.environ.setdefault("NPROC", str(worker.state.nthreads))
    if CORES in os.environ and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # cores that were taken away since
            os.sched_setaffinity(0, map(int, os.environ[CORES].split(",")))


def _keep_memory() -> None:
    """malloc keeps freed blocks of up to 32 MiB, as it learns to do in other processes. Dask starts workers with MALLOC_TRIM_THRESHOLD_, so
    that it asks the system for every larger block again, in training thousands of times a second: half of a worker's time."""
    with suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**25)
        mallopt(M_TRIM_THRESHOLD, 2**26)


def devices() -> int:
    """How many CPU devices jax has, or would have once it is started. The bits of networks depend on it: a device computes its share of the
    runs as one batch."""
    return max(jax.config.jax_num_cpu_devices, 1)  # pyright: ignore[reportAttributeAccessIssue]


def difference(who: str, theirs: dict[str, str | None], ours: dict[str, str]) -> str | None:
    """What a worker or the scheduler has in another version than the client, in one sentence."""
    for name, version in ours.items():
        if theirs.get(name) != version:
            has = f"{name} {theirs[name]}" if theirs.get(name) else f"no {name}"
            return f"{who} has {has}, but this process has {version}; results would differ, so install the same on both."
    return None


def perform(worker: str, work: str, text: str, task: str, asked: str, given: Sequence[bytes], tell: Callable[[float], Any]) -> bytes | str:
    """A finished task as bytes, or as text (JSON) why there is none.

    `asked` (JSON) is what the client has, `versions` and `devices`, and the names of the results that the task `needs`; `given` are the
    checkpoint to resume from, or nothing, and those results. `tell` is called with the share done.
    """
    try:
        with _one_at_a_time:  # also in a worker of several threads: a task has all of its process
            _start_jax(worker, client := json.loads(asked))
            made: Work = WORKS[work].from_text(text)
            digest, (resume, *others) = made.digest(), given
            needed = {name: unpack(content, digest).arrays for name, content in zip(client["needs"], others, strict=True)}
            latest = unpack(resume, digest) if resume else None
            tell(0.0)
            return pack(execute(made, task, needed, latest, lambda checkpoint: tell(checkpoint.share)), digest)
    except (OffspanError, OSError) as error:
        return json.dumps({"sentence": str(error)})
    except Exception:
        return json.dumps({"traceback": traceback.format_exc()})


def _start_jax(worker: str, client: dict[str, Any]) -> None:
    """As the client has it."""
    if sentence := difference(f"the worker {worker}", dict(versions()), client["versions"]):
        raise OffspanError(sentence)
    keep_programs()
    jax.config.update("jax_enable_x64", True)
    with suppress(RuntimeError):  # it runs already
        jax.config.update("jax_num_cpu_devices", client["devices"])
    if devices() != client["devices"]:
        raise OffspanError(
            f"the worker {worker} has started jax with {devices()} CPU devices, but this process has {client['devices']}, and the bits of "
            "networks depend on it; restart the workers."
        )
