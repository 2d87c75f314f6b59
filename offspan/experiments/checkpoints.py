"""What a task resumes from, as arrays with a checksum: in a file, or sent to another process."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offspan.errors import OffspanError
from offspan.experiments.spec import Arrays
from offspan.files import arrays_in, atomic_write, read_arrays


class Checkpoint(NamedTuple):
    """What a task resumes from, the share of it that is done, the seconds that went into it, and where it ran."""

    arrays: Arrays
    share: float
    seconds: float
    origin: Mapping[str, Any] = {}  # host, processor, device; numbers and texts

    def to_arrays(self) -> dict[str, np.ndarray]:
        metadata = {"share": self.share, "seconds": self.seconds, "origin": json.dumps(dict(self.origin))}
        return {**self.arrays, **{name: np.asarray(value) for name, value in metadata.items()}}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "Checkpoint":
        share, seconds = float(arrays.pop("share")), float(arrays.pop("seconds"))
        return cls(arrays, share, seconds, json.loads(str(arrays.pop("origin", "{}"))))


def save_arrays(path: Path, arrays: Arrays, digest: str) -> None:
    """With a checksum, and the digest of what they belong to."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            _write_arrays(file, arrays, digest)

    atomic_write(path, write)


def load_arrays(path: Path, digest: str) -> dict[str, np.ndarray]:
    """What `save_arrays` wrote; raises where it is damaged or of another digest."""
    return _checked(read_arrays(path), digest)


def pack(checkpoint: Checkpoint, digest: str) -> bytes:
    """A checkpoint as the bytes that `save_arrays` writes, to be sent to another process."""
    file = io.BytesIO()
    _write_arrays(file, checkpoint.to_arrays(), digest)
    return file.getvalue()


def unpack(content: bytes, digest: str) -> Checkpoint:
    """A checkpoint from what `pack` made; raises where it is damaged or of another spec."""
    return Checkpoint.from_arrays(_checked(arrays_in(io.BytesIO(content), "what was sent"), digest))


def _write_arrays(file: io.BufferedIOBase, arrays: Arrays, digest: str) -> None:
    content = {**arrays, "digest": np.asarray(digest)}
    np.savez(file, allow_pickle=False, checksum=np.asarray(checksum(content)), **content)


def _checked(arrays: dict[str, np.ndarray], digest: str) -> dict[str, np.ndarray]:
    if str(arrays.pop("checksum", "")) != checksum(arrays):
        raise OffspanError("it is not as it was written")
    if str(arrays.pop("digest")) != digest:
        raise OffspanError("it belongs to another spec")
    return arrays


def checksum(arrays: dict[str, np.ndarray]) -> str:
    """Of all numbers, their names, types and shapes."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return found.hexdigest()
