"""What running a spec takes, before anything of it is made: runs, memory and time. What cannot fit is refused with these numbers.

Memory is meant within a factor of two, and time, which depends on the machine, within a factor of ten.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax

from offspan.errors import OffspanError
from offspan.sizes import check_memory, gib
from offspan.training.lqr_sweep import batch_bytes

SPEED = {"cpu": 7e9, "gpu": 1e12}  # operations a second, of a device
COPIES = 20  # of a network's weights: those that are trained, what the optimiser and the stopping rule keep, checkpoints
YEARS = 10  # that nobody waits for
WORTH_SAYING = 2**30, 300.0  # bytes and seconds from which on a run is announced
ADVICE = "make fewer runs (`seeds`, and the lists), of a smaller `dim` or `horizon`, or record less often (`record_every`)"
NETWORKS = "train fewer seeds, or smaller networks (`width`, `depth`) from fewer states over a shorter horizon"


class Estimate(NamedTuple):
    """So many runs, bytes of memory and floating-point operations, and what to change where that is too much."""

    runs: int
    memory: float
    operations: float
    advice: str = ADVICE

    def seconds(self) -> float:
        return self.operations / len(jax.devices()) / SPEED.get(jax.devices()[0].platform, SPEED["gpu"])


def one_after_another(parts: Iterable[Estimate], beside: float = 0.0) -> Estimate:
    """Of which one is in memory at a time, with so many bytes beside it."""
    found = list(parts)
    memory = max(part.memory for part in found) + beside
    return Estimate(sum(part.runs for part in found), memory, sum(part.operations for part in found), found[0].advice)


def linear(seen: Mapping[int, int], dim: int, controls: int, horizon: int, iterations: int, record_every: int) -> Estimate:
    """A batch of linear controllers: so many runs of each number of seen states."""
    records = -(-iterations // record_every) + 1
    operations = 12.0 * iterations * horizon * dim * max(dim, controls) * sum(count * runs for count, runs in seen.items())
    return Estimate(sum(seen.values()), batch_bytes(seen, dim, controls, horizon, records), operations)


def networks(
    runs: int, states: int, *, dims: tuple[int, int], horizon: int, width: int, depth: int, iterations: int, precision: str
) -> Estimate:
    """A batch of networks with (n, m) inputs and outputs, each trained from so many states."""
    n, m = dims
    horizon = min(horizon, 10**10)  # the horizon of a problem has no limit, but a float has one
    weights = n * m + m if depth == 1 else (n + 1) * width + (depth - 2) * (width + 1) * width + (width + 1) * m
    activations = states * (horizon + 1) * (n + m + 2 * width * (depth - 1))
    memory = float(4 if precision == "float32" else 8) * runs * (COPIES * weights + activations + 1_000)
    return Estimate(runs, memory, 6.0 * iterations * runs * states * horizon * weights, NETWORKS)


def check_fits(spec: Any) -> Estimate | None:
    """Raises where this machine cannot run the spec; else what it takes, where that is known."""
    found = spec.estimate()
    if found is None:
        return None
    said = f"{spec.name}: {_count(found.runs, 'run')}"
    check_memory(said, found.memory, found.advice)
    if found.seconds() > YEARS * 365 * 86_400:
        raise OffspanError(f"{said} would take about {duration(found.seconds())} here; {found.advice}, or make fewer iterations.")
    return found


def announcement(spec: Any) -> str | None:
    """What a long or large run takes, in a sentence."""
    found = check_fits(spec)
    if found is None or (found.memory < WORTH_SAYING[0] and found.seconds() < WORTH_SAYING[1]):
        return None
    return f"{spec.name}: {_count(found.runs, 'run')}, about {gib(found.memory)} of memory, and at a guess {duration(found.seconds())}."


def duration(seconds: float | int) -> str:
    for unit, length in (("year", 365 * 86_400), ("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 1.5 * length:
            return _count(round(seconds / length), unit)
    return _count(max(round(seconds), 1), "second")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
