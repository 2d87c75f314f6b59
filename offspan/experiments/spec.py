"""What every experiment has: the content of a small TOML file, in which every word becomes a value once."""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import pydantic
import tomli_w

from offspan.errors import OffspanError, nearest
from offspan.experiments.estimate import Estimate
from offspan.files import excerpt, read_arrays, read_bytes

Positive = Annotated[int, pydantic.Field(strict=True, gt=0, lt=10**10)]
Seed = Annotated[int, pydantic.Field(strict=True, ge=0, lt=2**32)]
Rate = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
Number = Annotated[float, pydantic.Field(allow_inf_nan=False)]


def _is_name(text: str) -> str:
    """One that nothing takes for markup, a path or a formula."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise OffspanError("must be letters, digits, `.`, `_` and `-`, and begin with a letter or a digit")
    return text


Name = Annotated[str, pydantic.AfterValidator(_is_name)]


def _rectangular(rows: list[list[float]]) -> list[list[float]]:
    if not all(rows):
        raise OffspanError("has an empty row")
    if len(lengths := {len(row) for row in rows}) > 1:
        raise OffspanError(f"has rows of different lengths, {sorted(lengths)}")
    return rows


Matrix = Annotated[list[list[Number]], pydantic.Field(min_length=1), pydantic.AfterValidator(_rectangular)]


def filled(rows: list[list[float]], length: int, precision: str) -> np.ndarray:
    """States (s, n): what a spec gives of each, and zeros."""
    given = np.asarray(rows, precision)
    if given.shape[1] > length:
        raise OffspanError(f"{rows[0]} has {given.shape[1]} numbers, but a state of the system has {length}.")
    return np.pad(given, ((0, 0), (0, length - given.shape[1])))


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class Spec(Strict):
    """What every experiment has."""

    kind: Any  # a Literal in each kind of spec
    name: Name
    title: str = ""
    seeds: list[Seed] = pydantic.Field([0], min_length=1)
    iterations: Positive
    precision: Literal["float32", "float64"] = "float64"
    quick_iterations: Positive | None = None
    quick: bool = False
    seeds_per_task: Positive | None = None  # that a task trains; all of them by default
    splits_by_seeds: ClassVar[bool] = False  # whether this kind of experiment can

    @pydantic.field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> Any:
        """A number stands for the seeds 0, 1, …"""
        if not isinstance(seeds, int) or isinstance(seeds, bool):
            return seeds
        if not 1 <= seeds <= 100_000:
            raise OffspanError("must be 1 to 100,000, or a list")
        return list(range(seeds))

    @pydantic.field_validator("*")
    @classmethod
    def _each_once(cls, values: Any) -> Any:
        if isinstance(values, list) and values and isinstance(values[0], str | int | float) and len(set(values)) < len(values):
            raise OffspanError(f"has a value twice: {values}")
        return values

    @pydantic.model_validator(mode="after")
    def _can_be_split(self):
        if self.seeds_per_task is not None and not self.splits_by_seeds:
            raise OffspanError(f"`seeds_per_task` has no effect on experiments of the kind {self.kind}; leave it out")
        return self

    def as_quick(self) -> "Spec":
        """The same experiment with fewer iterations, marked as such, under a name of its own."""
        iterations = self.quick_iterations or max(self.iterations // 20, 1)
        return self._variant("quick", iterations=iterations, quick=True)

    def with_seeds(self, count: int) -> "Spec":
        """The same experiment with the seeds 0..count−1, under a name of its own."""
        if not 1 <= count <= 100_000:
            raise OffspanError(f"the number of seeds is {count}, but must be from 1 to 100,000.")
        return self._variant(f"{count}-seeds", seeds=list(range(count)))

    def as_one_program(self) -> "Spec":
        """The same experiment with its objectives as one program, under a name of its own."""
        if "together" not in type(self).model_fields:
            raise OffspanError(f"{self.name} is of the kind {self.kind}, which has no objectives to train together; leave --together out.")
        return self._variant("together", together=True)

    def with_seeds_per_task(self, count: int) -> "Spec":
        """The same experiment in more tasks, under a name of its own."""
        if not self.splits_by_seeds:
            raise OffspanError(f"{self.name} is of the kind {self.kind}, whose tasks are not split by seeds; leave --seeds-per-task out.")
        if count < 1:
            raise OffspanError(f"the number of seeds a task is {count}, but must be at least 1.")
        return self._variant(f"{count}-a-task", seeds_per_task=count)

    def _variant(self, suffix: str, **update: Any) -> "Spec":
        """The same with other values, under a name of its own; a run that it is compared with is varied likewise."""
        other = getattr(self, "compare_with", None)
        beside = {"compare_with": f"{other}-{suffix}"} if other else {}
        return validated(type(self), {**dict(self), "name": f"{self.name}-{suffix}", **beside, **update}, self.name)

    def digest(self) -> str:
        """Which experiment this is: a hash of all of it but its title."""
        # What did not exist when earlier runs were made, and is not used, is left out.
        later = {"seeds_per_task": None, "together": False, "clip": None}
        absent = {name for name, unused in later.items() if getattr(self, name, 0) is unused}
        content = json.dumps(self.model_dump(mode="json", exclude={"title"} | absent), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def check(self) -> None:
        """Raises where the spec cannot be run, before anything is written."""

    def estimate(self) -> Estimate | None:
        """What running it takes, where that is known; from its numbers alone, as nothing may be made yet."""
        return None

    def content(self) -> str:
        """What is trained, in a few words."""
        return ""


Arrays = Mapping[str, np.ndarray]


class Task(NamedTuple):
    """A piece of an experiment: it depends on the spec and on the results of the tasks that it `needs`; `weight` is its share of the work.

    Its result, and what it resumes from, are arrays.
    """

    name: str
    weight: float
    needs: tuple[str, ...] = ()


OnChunk = Callable[[float, Arrays], Any]  # called by a task with the share done, from 0 to 1, and what it can be resumed from


def result_attributes(spec: Spec) -> dict[str, Any]:
    """What a result says of itself."""
    return {
        "kind": spec.kind,
        "name": spec.name,
        "title": spec.title,
        "iterations": spec.iterations,
        "quick": int(spec.quick),
        "precision": spec.precision,
    }


def to_toml(spec: Spec) -> str:
    """What `load_spec` reads, with a list of numbers on one line."""
    text = tomli_w.dumps(spec.model_dump(exclude_none=True))
    innermost = re.compile(r"\[\n\s*([^\[\]]*?),\n\s*\]")
    shorter = innermost.sub(lambda found: "[" + ", ".join(item.strip() for item in found[1].split(",\n")) + "]", text)
    return shorter if tomllib.loads(shorter) == tomllib.loads(text) else text  # brackets in a string, say


def read_toml(path: Path) -> dict[str, Any]:
    """`file = "….npz"` under a system's matrices stands for the arrays A, B, Q, R in that file, beside the spec."""
    try:
        content = tomllib.loads(read_bytes(path).decode())
        repr(content)  # raises of numbers with thousands of digits, which hexadecimal ones would only do in an error message
        if "\0" in _texts(content):
            raise OffspanError(f"{path} has a text with the character NUL, which no result can hold; take it out.")
    except OffspanError:
        raise
    except FileNotFoundError:
        raise OffspanError(f"there is no file {str(path)!r}.") from None
    except RecursionError:
        raise OffspanError(f"{path} is nested too deeply for a spec.") from None
    except ValueError as error:  # of TOML, of its encoding, or of a number with thousands of digits
        raise OffspanError(f"{path} is not a TOML file: {excerpt(error)}.") from error
    content.setdefault("name", path.stem)
    matrices = content.get("matrices", {})
    for own in matrices.values() if isinstance(matrices, dict) else ():
        if isinstance(own, dict) and "file" in own:
            own.update(_read_matrices(path.parent / str(own.pop("file"))))
    return content


def _texts(value: Any) -> str:
    """All texts in a table, one after another."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value if isinstance(value, str) else "".join(map(_texts, inside))


def _read_matrices(path: Path) -> dict[str, Any]:
    try:
        arrays = read_arrays(path)
    except FileNotFoundError as error:
        raise OffspanError(str(error)) from None
    if wrong := [name for name, array in arrays.items() if array.dtype.kind not in "fiub"]:
        raise OffspanError(f"{path}: `{wrong[0]}` is not an array of real numbers; write it with numpy.savez(path, A=…, B=…).")
    return {name: array.astype(float).tolist() for name, array in arrays.items()}


def validated(model: type[pydantic.BaseModel], content: dict[str, Any], source: str, inside: str = "") -> Any:
    """`content` as a `model`; its first mistake becomes one sentence. `inside` is the table of the spec that it is of."""
    try:
        return model.model_validate(content)
    except pydantic.ValidationError as error:
        # A misspelt key is also a missing one: report the misspelling.
        first = next((one for one in error.errors() if one["type"] == "extra_forbidden"), error.errors()[0])
        place = ".".join([*([inside] if inside else []), *map(str, first["loc"])])
        if first["type"] == "extra_forbidden":
            known = list(_model_at(model, first["loc"][:-1]).model_fields)
            hint = nearest(str(first["loc"][-1]), known) or f"; there are {', '.join(known)}"
            raise OffspanError(f"{source}: there is no key {place!r}{hint}.") from None
        plainer = {"list_type": "must be a list, in brackets", **dict.fromkeys(("model_type", "dict_type"), "must be a table")}
        message = plainer.get(first["type"], first["msg"].removeprefix("Value error, ").rstrip("."))
        if place == "name":
            message += "; give the spec a `name`, or rename the file"
        where = f"`{place}`: " if place else ""
        shown = repr(first["input"])
        shown = shown if len(shown) <= 100 else f"{shown[:97]}…"
        given = f" (given: {shown})" if place and not isinstance(first["input"], dict | list) else ""
        raise OffspanError(f"{source}: {where}{message}{given}.") from None


def _model_at(model: type[pydantic.BaseModel], places: tuple[Any, ...]) -> type[pydantic.BaseModel]:
    """The model of a table inside a spec."""
    for place in places:
        if place in model.model_fields:
            model = next(iter(_models(model.model_fields[place].annotation)), model)
    return model


def _models(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for one in get_args(annotation) for model in _models(one)]
