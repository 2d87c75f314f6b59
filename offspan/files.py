"""Files: each is written beside itself and renamed into place, so that it is whole or not there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls `write` with a path in the same folder and of the same suffix, then renames that file to `path`."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}.")
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
