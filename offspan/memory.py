"""A long computation in parts, each made once, so that one that was interrupted continues."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import numpy as np

from offspan.errors import OffspanError


@runtime_checkable
class Memory(Protocol):
    """Where finished parts are kept, arrays by name: a dict, or something with a disk behind it."""

    def get(self, name: str, /) -> Any: ...

    def __setitem__(self, name: str, arrays: Mapping[str, np.ndarray], /) -> None: ...


class Parts:
    """Parts by name, each made once and kept in `memory`; `progress` is called with the share of the expected ones."""

    def __init__(self, memory: Memory, progress: Callable[[float], Any] | None, expected: int):
        self.memory, self.progress, self.expected = memory, progress, expected
        self.found: dict[str, Mapping[str, np.ndarray]] = {}

    def __call__(self, name: str, make: Callable[[], Mapping[str, np.ndarray]]) -> Mapping[str, np.ndarray]:
        if name not in self.found:
            kept = self.memory.get(name)
            if kept is None:
                self.memory[name] = kept = make()
            self.found[name] = kept
            self.tell()
        return self.found[name]

    def belong_to(self, where: str, given: list[Any]) -> None:
        """Refuses a memory that was filled with other arguments; what is no array is not compared."""
        values = [np.asarray(one) for one in given if eqx.is_array_like(one)]
        found = hashlib.sha256(b"".join(f"{one.dtype.str} {one.shape} ".encode() + one.tobytes() for one in values)).hexdigest()
        if str(self("arguments", lambda: {"arguments": np.asarray(found)})["arguments"]) != found:
            raise OffspanError(f"{where}: `memory` holds parts that were made with other arguments; pass another one.")

    def tell(self, more: float = 0.0) -> None:
        if self.progress is not None:
            self.progress(min((len(self.found) + more) / self.expected, 1.0))

    def end(self) -> None:
        if self.progress is not None:
            self.progress(1.0)
