"""Compiled programs are kept between commands, since compilation takes more time than most short experiments.

jax's own persistent cache does the work; this says where. A compiled program is code, so the folder is the user's own, and private.
"""

import hashlib
import os
import platform
import stat
import warnings
from contextlib import suppress
from pathlib import Path

import jax

MOST = 2**29  # bytes; beyond that the oldest programs are removed
FLAGS = ("flags", "Features", "model name")  # in /proc/cpuinfo: what a program may be compiled for


def keep_programs(folder: Path | None = None) -> None:
    """From here on jax keeps what it compiles in `folder`, by default ~/.cache/offspan, and loads it from there.

    Nothing changes where jax was told another folder (`JAX_COMPILATION_CACHE_DIR`), or where others may write to this one; jax keeps
    nothing where it was told so (`JAX_ENABLE_COMPILATION_CACHE=false`). Emptying the folder is safe at any time.
    """
    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return
    folder = _usual_folder() if folder is None else folder
    with suppress(OSError, RuntimeError):  # a home that cannot be written to, or that is unknown
        folder.parent.mkdir(parents=True, exist_ok=True)
        for private in (folder, own := folder / _machine()):
            private.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(private):
                return
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")  # it is compiled again
        jax.config.update("jax_compilation_cache_dir", str(own))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        _remove_oldest(folder)


def _usual_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offspan"


def _machine() -> str:
    """A name for the processor, its instructions and the number of threads: jax does not tell programs for different ones apart."""
    found = [platform.machine(), platform.processor()]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found += sorted({line for line in lines if line.startswith(FLAGS)})
    threads = os.environ.get("NPROC") or str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    return hashlib.sha256("\n".join([*found, threads]).encode()).hexdigest()[:16]


def _is_private(folder: Path) -> bool:
    """A folder of this user, no link, to which nobody else may write."""
    if not hasattr(os, "getuid"):  # Windows, where a user's folders are private
        return True
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _remove_oldest(folder: Path) -> None:
    kept = []
    for found in folder.glob("*/*-cache"):
        with suppress(FileNotFoundError):  # another process has just removed it
            kept.append((found.stat(), found))
    size = sum(status.st_size for status, _ in kept)
    for status, path in sorted(kept, key=lambda one: one[0].st_mtime):
        if size <= MOST:
            return
        path.unlink(missing_ok=True)
        size -= status.st_size
