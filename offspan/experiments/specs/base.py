"""What every experiment has: the content of a small TOML file, in which every word becomes a value once."""

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from offspan.errors import OffspanError

Positive = Annotated[int, pydantic.Field(strict=True, gt=0, lt=10**10)]
Seed = Annotated[int, pydantic.Field(strict=True, ge=0, lt=2**32)]
Rate = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
Number = Annotated[float, pydantic.Field(allow_inf_nan=False)]


def _rectangular(rows: list[list[float]]) -> list[list[float]]:
    if not all(rows):
        raise OffspanError("has an empty row")
    if len(lengths := {len(row) for row in rows}) > 1:
        raise OffspanError(f"has rows of different lengths, {sorted(lengths)}")
    return rows


def distinct(values: list | None) -> list | None:
    if values is not None and len(set(values)) < len(values):
        raise OffspanError(f"has a value twice: {values}")
    return values


Matrix = Annotated[list[list[Number]], pydantic.Field(min_length=1), pydantic.AfterValidator(_rectangular)]


def filled(rows: list[list[float]], length: int, precision: str) -> np.ndarray:
    """States (s, n): what a spec gives of each, and zeros."""
    given = np.asarray(rows, precision)
    return np.pad(given, ((0, 0), (0, length - given.shape[1])))


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Spec(Strict):
    """What every experiment has."""

    kind: Any  # a Literal in each kind of spec
    name: str = pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    title: str = ""
    seeds: list[Seed] = pydantic.Field([0], min_length=1)
    iterations: Positive
    precision: Literal["float32", "float64"] = "float64"
    quick_iterations: Positive | None = None
    quick: bool = False

    @pydantic.field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> Any:
        """A number stands for the seeds 0, 1, …"""
        return list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) and 0 < seeds <= 100_000 else seeds

    def as_quick(self) -> "Spec":
        """The same experiment with fewer iterations, for a first look; under a name of its own, and saying so."""
        iterations = self.quick_iterations or max(self.iterations // 20, 1)
        return self._variant("quick", iterations=iterations, quick=True)

    def with_seeds(self, count: int) -> "Spec":
        """The same experiment with the seeds 0..count−1, under a name of its own."""
        if not 1 <= count <= 100_000:
            raise OffspanError(f"the number of seeds is {count}, but must be from 1 to 100,000.")
        return self._variant(f"{count}-seeds", seeds=list(range(count)))

    def _variant(self, suffix: str, **update: Any) -> "Spec":
        """The same with other values, under a name of its own; a run that it is compared with is varied likewise."""
        other = getattr(self, "compare_with", None)
        beside = {"compare_with": f"{other}-{suffix}"} if other else {}
        return self.model_copy(update={"name": f"{self.name}-{suffix}", **beside, **update})

    def digest(self) -> str:
        """Which experiment this is: a hash of all of it but its title."""
        content = json.dumps(self.model_dump(mode="json", exclude={"title"}), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def part_weights(self) -> list[float]:
        """The parts that are trained one after another, each with a checkpoint of its own, by what an iteration of them costs."""
        return [1.0]

    def content(self) -> str:
        """What is trained, in a few words."""
        return ""
