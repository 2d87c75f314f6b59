"""Files: atomic writes, arrays without pickle, and folders that one process locks."""

import functools
import io
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from offspan.errors import OffspanError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def excerpt(error: Exception) -> str:
    """What an error says of a file, for the middle of a sentence: its first line, and not all of it where it quotes the file."""
    text = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return text if len(text) <= 160 else f"{text[:157]}…"


def atomic_write(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls `write` with a temporary path in the same folder and of the same suffix, then renames that file to `path`.

    The temporary file is new and its name cannot be known before, so that nobody can put a link in its place, and threads do not share it.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}.")
    handle, name = tempfile.mkstemp(prefix=".", suffix=f".{path.name}", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        temporary.chmod(0o666 & ~_umask())  # as a file that is simply opened; mkstemp makes it private
        write(temporary)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())  # else a power cut can leave the new name with nothing in it
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@functools.cache
def _umask() -> int:
    """It can only be read by setting it, which is no matter once, before threads write."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def atomic_write_text(path: Path, text: str) -> None:
    atomic_write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; nothing in it is unpickled."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {str(path)!r}.") from None
    with file:
        return arrays_in(file, str(path))


def arrays_in(file: io.BufferedIOBase, source: str) -> dict[str, np.ndarray]:
    """Likewise of an open file; `source` is named in errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of a damaged header before it refuses it
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # of a damaged file NumPy and zipfile raise almost anything
        raise OffspanError(f"{source} is not an .npz file of plain arrays ({excerpt(error)}).") from error


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keeps other processes that lock the same folder out of it.

    The lock is the system's: it ends with the process, however that ends, and leaves no file. Where there are no such locks (Windows,
    some network file systems) nothing is kept out.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OffspanError(
            f"another process is at work in {folder}; wait until it has ended, or give your spec a `name` of its own."
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(handle)
