"""What an experiment can name: systems, kinds of experiments, and presets. Each is registered by one entry here."""

import importlib
import importlib.resources
import inspect
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import jax
import xarray as xr

from offspan.errors import OffspanError, check_known, nearest
from offspan.experiments.spec import Arrays, OnChunk, Spec, Task, read_toml, validated
from offspan.problems import LQR, Pendulum, Problem, Quadcopter, gaussian, gaussian_abq, identity, shift


class Family(NamedTuple):
    """A family of LQRs, made by `make(seed, dim, horizon)`; where it is not random, the seed makes no difference."""

    make: Callable[[int, int, int], LQR]
    is_random: bool = False


class Coordinate(NamedTuple):
    """One number of a state, as axes and tables call it."""

    label: str  # with its unit

    @property
    def name(self) -> str:
        return self.label.partition(" [")[0]

    @property
    def unit(self) -> str:
        return self.label.partition(" [")[2].removesuffix("]")


class System(NamedTuple):
    """A non-linear system, made by `make(**settings)`. `position` are the coordinates that tell initial states apart in figures, `mapped`
    those over which a map is drawn; `scene` is the picture of a state (`report.scenes.SCENES`)."""

    make: Callable[..., Problem]
    position: tuple[int, ...] = (0, 1)
    mapped: tuple[int, int] = (0, 1)
    scene: str = "plane"

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        return tuple(map(Coordinate, self.make().coordinates))

    @property
    def names(self) -> list[str]:
        return [coordinate.name for coordinate in self.coordinates]


FAMILIES: dict[str, Family] = {
    "identity": Family(lambda seed, dim, horizon: identity(dim, horizon=horizon)),
    "shift": Family(lambda seed, dim, horizon: shift(dim, horizon=horizon)),
    "gaussian": Family(lambda seed, dim, horizon: gaussian(jax.random.key(seed), dim, horizon=horizon), is_random=True),
    "gaussian-abq": Family(lambda seed, dim, horizon: gaussian_abq(jax.random.key(seed), dim, horizon=horizon), is_random=True),
}
SYSTEMS: dict[str, System] = {
    "pendulum": System(Pendulum, position=(0,), scene="pendulum"),
    "quadcopter": System(Quadcopter, position=(0, 1, 2), mapped=(0, 2), scene="room"),
}
# A kind of experiment is a module of that name in `offspan.experiments` (a `Kind`), and one in `offspan.report`.
KINDS = ("lqr", "starts", "network", "selection", "ways", "network_ways", "system")


@runtime_checkable
class Kind(Protocol):
    """What the module of a kind has. How an experiment is cut into tasks follows from its spec alone."""

    SPEC: type[Spec]
    VARIABLES: dict[str, tuple[str, ...]]  # that a result holds at least, with their dimensions
    ATTRIBUTES: dict[str, type]  # likewise; str, or float for any number

    @staticmethod
    def tasks(spec: Any) -> list[Task]:
        """Each after those that it needs."""
        ...

    @staticmethod
    def run_task(spec: Any, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
        """The result of a task, from the results that it needs and from where it was left."""
        ...

    @staticmethod
    def to_dataset(spec: Any, results: Mapping[str, Arrays]) -> xr.Dataset:
        """One labelled result of all tasks."""
        ...


def kind(name: Any) -> Kind:
    check_known("there is no kind", name, KINDS)
    return cast(Kind, importlib.import_module(f"offspan.experiments.{name}"))


def system(name: str, settings: Mapping[str, Any]) -> Problem:
    """A registered non-linear system with these settings."""
    check_known("there is no system", name, SYSTEMS)
    for key in settings:
        check_known(f"a {name} has no setting", key, inspect.signature(SYSTEMS[name].make).parameters)
    return SYSTEMS[name].make(**settings)


def load_spec(path: Path, *, trust_code: bool = False) -> Spec:
    """The experiment that a TOML file describes; with `trust_code`, code that it names may be imported."""
    return placed(spec_from(read_toml(path), str(path)), path, trust_code)


def placed(spec: Any, path: Path, trust_code: bool = False) -> Any:
    """The paths and modules of its system, if it has such a table, are those from the spec's folder; its code may run if that is said."""
    table: Any = getattr(spec, "system", None)
    if not hasattr(table, "located"):
        return spec
    table = table.located(path.parent)
    return spec.model_copy(update={"system": table.trusted() if trust_code else table})


def spec_from(content: dict[str, Any], source: str) -> Spec:
    """`source` is named in errors."""
    if isinstance(content.get("choose"), dict):
        raise OffspanError(f"{source}: its states are still to be chosen; `offspan select` writes a spec that runs.")
    try:
        found = kind(content.setdefault("kind", "system" if "system" in content else "lqr"))
    except OffspanError as error:
        raise OffspanError(f"{source}: {error}") from None
    return validated(found.SPEC, content, source)


def load_preset(name: str) -> Spec:
    """An experiment that comes with offspan, by its name."""
    if name not in preset_names():
        raise OffspanError(f"there is no preset {name!r}{nearest(name, preset_names())}; `offspan list` shows them all.")
    text = (importlib.resources.files("offspan.experiments") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    return spec_from(tomllib.loads(text), f"preset {name}")


def preset_names() -> list[str]:
    """The names of all presets, sorted."""
    folder = importlib.resources.files("offspan.experiments") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def presets_for(name: str) -> list[str]:
    """The preset of that name, or all whose names begin with it and a dash."""
    if name in preset_names():
        return [name]
    group = [preset for preset in preset_names() if preset.startswith(f"{name}-")]
    return group or [load_preset(name).name]  # which says what there is


def preset_of(spec: Spec) -> str | None:
    """The preset whose settings these are, whatever the name, the seeds, the iterations and how training is split into programs."""
    free = {"name", "title", "seeds", "iterations", "quick", "quick_iterations", "compare_with", "seeds_per_task", "together"}
    ours = spec.model_dump(exclude=free)

    def settings(name: str) -> dict[str, Any]:
        preset = load_preset(name)
        return (preset.as_quick() if spec.quick and len(spec.seeds) < len(preset.seeds) else preset).model_dump(exclude=free)

    return next((name for name in preset_names() if settings(name) == ours), None)


def check_result(result: xr.Dataset) -> None:
    """Whether the result of a run holds what its kind says."""
    of_kind = kind(result.attrs.get("kind", "lqr"))
    for name, of_type in {"name": str, "iterations": float, "quick": float, **of_kind.ATTRIBUTES}.items():
        if name not in result.attrs or isinstance(result.attrs[name], str) != (of_type is str):
            raise OffspanError(f"it has no {'text' if of_type is str else 'number'} {name!r} among its attributes")
    for name, dimensions in of_kind.VARIABLES.items():
        if name not in result.variables or result[name].dims != dimensions:
            raise OffspanError(f"it has no variable {name!r} over ({', '.join(dimensions)})")
    for name, coordinate in result.coords.items():
        if coordinate.dtype.kind not in "fiub" and any("$" in str(text) for text in coordinate.values.ravel()):
            raise OffspanError(f"its coordinate {name!r} has a text with `$`, which begins a formula in figures")
    if empty := [name for name, size in result.sizes.items() if size == 0]:
        raise OffspanError(f"its dimension {empty[0]!r} is empty")
