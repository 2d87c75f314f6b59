"""Files: each is written beside itself and renamed into place, so that it is whole or not there; and folders that one process holds."""

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from offspan.errors import OffspanError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# What NumPy raises of an .npz file that is not what it should be.
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    EOFError,
    NotImplementedError,
    MemoryError,
    BadZipFile,
    zlib.error,
)


def why(error: Exception) -> str:
    """What an error says of a file, for the middle of a sentence: its first line, and not all of it where it quotes the file."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return text if len(text) <= 160 else f"{text[:157]}…"


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls `write` with a path in the same folder and of the same suffix, then renames that file to `path`."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}.")
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        write(beside)
        with beside.open("r+b") as file:
            os.fsync(file.fileno())  # else a power cut can leave the new name with nothing in it
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps other processes that ask for the same folder out of it.

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
