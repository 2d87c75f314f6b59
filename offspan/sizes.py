"""How much memory there is, what would not fit into it, and how to work through much in parts that do."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offspan.errors import OffspanError

NUMBERS = 2**20  # in a block of rows
TRAJECTORIES = 2**24  # numbers in the trajectories of a block of states
STATES = 1_000  # in a block, at most


def free_memory() -> float:
    """In bytes, where the system tells; in a container no more than that may have."""
    found = [math.inf]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * next(float(line.split()[1]) for line in lines if line.startswith("MemAvailable")))
        found.append(float(Path("/sys/fs/cgroup/memory.max").read_text()))  # "max" where there is no limit
    except (OSError, StopIteration, ValueError):
        pass
    return min(found)


def check_memory(said: str, needed: float | int, advice: str, limit: float | int | None = None) -> None:
    """Raises where `needed` bytes are more than the limit, by default what is free; `said` is what would need them."""
    free = free_memory() if limit is None else limit
    if needed > free:
        raise OffspanError(f"{said} need about {gib(needed)}, but {gib(free)} are free; {advice}.")


def gib(count: float | int) -> str:
    """Bytes in words."""
    return f"{count / 2**30:,.2f} GiB" if count < 2**40 else f"{count / 2**30:,.0f} GiB"


def blocks(count: int, numbers: int) -> list[slice]:
    """Slices of so many states (sets, …) that the `numbers` which each takes make up a block; one slice where that is enough."""
    step = max(TRAJECTORIES // max(numbers, 1), 1)
    return [slice(first, min(first + step, count)) for first in range(0, count, step)]


class Rows:
    """A row of numbers for each of `count` candidates, (c, w), made by `make(indices)`, for which each takes `work` numbers.

    All of them are kept where they take a quarter of the free memory at most; else they are made again, block by block, whenever they are
    asked for. The bits do not depend on it.
    """

    def __init__(self, make: Callable[[np.ndarray], Any], count: int, width: int, work: int = 1):
        self.make, self.count, self.width = make, count, width
        self.step = max(min(NUMBERS // width, TRAJECTORIES // work, STATES, count), 1)
        self._kept: np.ndarray | None = None

    def __getitem__(self, which: np.ndarray) -> np.ndarray:
        if self._kept is not None:
            return self._kept[which]
        found = np.empty((len(which), self.width))
        for first in range(0, len(which), self.step):
            some = which[first : first + self.step]
            found[first : first + len(some)] = self.make(np.resize(some, self.step))[: len(some)]  # of one shape: one program
        return found

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks: indices, and their rows."""
        every = np.arange(self.count)
        if self._kept is None and 8 * self.count * self.width <= free_memory() / 4:
            self._kept = self[every]
        for first in range(0, self.count, self.step):
            which = every[first : first + self.step]
            yield which, self[which] if self._kept is None else self._kept[first : first + self.step]
