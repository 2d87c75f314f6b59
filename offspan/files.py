"""Files: atomic writes, arrays without pickle, and folders that one process locks."""

import functools
import io
import os
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from offspan.errors import OffspanError
from offspan.sizes import gib

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


TEMPORARY = ".offspan-"  # how the names of temporary files begin
TEXT = 2**26  # bytes, at most, of a file that people write or read
FORMULA = re.compile(r"[=+@\t\r]|-(?![\d.])")  # how a text begins that a spreadsheet takes for one
LEAST_LIMIT, LARGEST_RATIO = 2**28, 200  # bytes that any file may declare, and how often its own size; real ones compress tenfold


def sentence(error: Exception) -> str:
    """What an error says to a person: one of the system's the file and the reason, without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror}." if error.filename is None else f"{error.filename}: {error.strerror}."


def printable(text: str) -> str:
    """For a terminal: with escape sequences, and whatever else is not a character to be seen, written out."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def excerpt(error: Exception) -> str:
    """What an error says of a file, for the middle of a sentence: its first line, not all of it where it quotes the file, and without what
    Python advises its programmers where a number has thousands of digits."""
    text = (sentence(error).splitlines() or [type(error).__name__])[0].partition("; use sys.")[0].rstrip(".")
    return text if len(text) <= 160 else f"{text[:157]}…"


def without_formulas(data: Any) -> Any:
    """A pandas table for a CSV file: a text that a spreadsheet would take for a formula has an apostrophe before it."""
    plain = lambda value: f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value  # noqa: E731
    data = data.rename(columns=plain)
    texts = data.select_dtypes(exclude=["number", "bool"]).columns
    return data.assign(**{name: data[name].map(plain) for name in texts})


def check_declared(size: int, declared: int) -> None:
    """Raises where a file of this size would fill the memory."""
    if declared > max(LEAST_LIMIT, LARGEST_RATIO * size):
        raise OffspanError(f"{size:,} bytes that declare {declared / 2**30:.1f} GiB of numbers")


def make_folder(path: Path) -> None:
    """With its parents, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise _no_folder(path) from None


def _no_folder(path: Path) -> OffspanError:
    return OffspanError(
        f"{path} cannot be a folder, as there is a file of that name, or of one above it; name another folder, or move the file away."
    )


def check_folder(path: Path) -> None:
    """Raises where `make_folder` would, or where nothing may be written to that folder; makes nothing."""
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir():
        raise _no_folder(path)
    if not os.access(there, os.W_OK | os.X_OK):
        raise OffspanError(f"nothing may be written to the folder {str(there)!r}; name another one.")


def check_writable(path: Path, is_ours: Callable[[bytes], bool], what: str) -> None:
    """Raises where a file cannot be written, or something is there already whose content is not ours; `what` says what that is."""
    if not path.parent.is_dir():
        raise OffspanError(f"there is no folder {str(path.parent)!r} to write {path.name} to.")
    check_folder(path.parent)
    if (path.exists() or path.is_symlink()) and not (path.is_file() and path.stat().st_size <= TEXT and is_ours(path.read_bytes())):
        raise OffspanError(f"{path} is there already and {what}; name another place, or move it away.")


def atomic_write(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls `write` with a temporary path in the same folder and of the same suffix, then renames that file to `path`.

    The temporary file is new and its name cannot be known before, so that nobody can put a link in its place, and threads do not share it.
    It is locked as long as this process writes it: one that is not was left by a process that was killed, and is removed
    (`remove_abandoned`).
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}.")
    if path.is_dir():
        raise OffspanError(f"cannot write {str(path)!r}: it is a folder; name a file in it.")
    remove_abandoned(path)
    temporary, handle = _new_temporary(path)
    try:
        temporary.chmod(0o666 & ~_umask())  # as a file that is simply opened; mkstemp makes it private
        write(temporary)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())  # else a power cut can leave the new name with nothing in it
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


def _new_temporary(path: Path) -> tuple[Path, int | None]:
    """A temporary file for `path`, and the handle by which it is locked, where there are locks."""
    while True:
        handle, name = tempfile.mkstemp(prefix=TEMPORARY, suffix=f".{path.name}", dir=path.parent)
        if fcntl is None:
            os.close(handle)
            return Path(name), None
        with suppress(OSError):  # a file system without locks, where nothing is removed either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return Path(name), handle
        os.close(handle)  # taken for abandoned by another process, in the moment before it was locked


def temporaries(path: Path) -> list[Path]:
    """The temporary files for `path` that are there."""
    ours = re.compile(rf"{re.escape(TEMPORARY)}[a-z0-9_]{{8}}\.{re.escape(path.name)}")
    with suppress(OSError), os.scandir(path.parent) as entries:
        return [Path(entry.path) for entry in entries if ours.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
    return []


def remove_abandoned(path: Path) -> None:
    """Temporary files for `path` that nobody has locked; nothing that does not have such a name."""
    if fcntl is None:
        return
    for left in temporaries(path):
        with suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


@functools.cache
def _umask() -> int:
    """It can only be read by setting it, which is no matter once, before threads write."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def atomic_write_text(path: Path, text: str) -> None:
    content = text.encode(errors="backslashreplace")  # of names of files that are no text
    atomic_write(path, lambda temporary: temporary.write_bytes(content))


def is_there(path: Path) -> bool:
    """Like `Path.exists`, which in some versions of Python answers no where a folder may not be looked into; this raises."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def open_file(path: Path) -> io.BufferedReader:
    """For reading. A pipe or a device is refused, as it might be waited for without end."""
    if path.exists() and not path.is_file():
        raise OffspanError(f"{path} is a {'folder' if path.is_dir() else 'pipe or a device'}, where a file is needed.")
    return path.open("rb")


def read_bytes(path: Path, limit: float = TEXT) -> bytes:
    """All of a file of at most `limit` bytes."""
    with open_file(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise OffspanError(f"{path} has {gib(size)}, but at most {gib(limit)} of such a file are read; is it the right one?")
        return file.read()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; nothing in it is unpickled."""
    try:
        file = open_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {str(path)!r}.") from None
    with file:
        return arrays_in(file, str(path))


def arrays_in(file: io.BufferedIOBase, source: str) -> dict[str, np.ndarray]:
    """Likewise of an open file; `source` is named in errors."""
    try:
        if not zipfile.is_zipfile(file):
            raise OffspanError("it is no zip archive")
        file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of a damaged header before it refuses it
            with np.load(file, allow_pickle=False) as arrays:
                parts = arrays.zip.infolist()
                check_declared(sum(part.compress_size for part in parts), sum(part.file_size for part in parts))
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
