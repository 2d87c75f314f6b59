"""Finished runs from their folders, with what a reader must know of each: what was asked, where it comes from, how to run it again."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from offspan.errors import OffspanError, nearest
from offspan.experiments.specs.base import Spec
from offspan.experiments.specs.reading import load_preset, preset_of, to_toml
from offspan.experiments.store import RunFolder, find_runs


class Gathered(NamedTuple):
    """A finished run."""

    name: str  # of its folder
    title: str
    content: str  # what was asked, in a few words
    asked: str  # its spec, as TOML
    preset: str | None  # whose settings these are
    command: str  # that makes it again
    result: xr.Dataset
    beside: xr.Dataset | None
    provenance: dict[str, Any]


def gather(root: Path, name: str) -> Gathered:
    """The run of that name under `root`."""
    known = [run.path.name for run in find_runs(root)]
    if name not in known:
        raise OffspanError(f"there is no run {name!r} in {root}{nearest(name, known)}.")
    folder = RunFolder(root / name)
    spec = folder.spec()
    other = getattr(spec, "compare_with", None)
    beside = RunFolder(root / other) if other else None
    return Gathered(
        name,
        spec.title,
        f"{spec.content()}; {len(spec.seeds)} seed{'s' if len(spec.seeds) > 1 else ''}, {spec.iterations:,} iterations, {spec.precision}",
        to_toml(spec),
        preset_of(spec),
        _command(spec, folder.spec_file),
        folder.load_result(),
        beside.load_result() if beside is not None and beside.is_complete() else None,
        folder.provenance(),
    )


def finished(root: Path) -> list[str]:
    """The names of all runs under `root` that have a result."""
    return [run.path.name for run in find_runs(root) if run.is_complete()]


def variants(names: list[str], presets: list[str]) -> list[str]:
    """Of the names, those of each preset and of its variants: another number of seeds, a quick look."""
    return [name for preset in presets for name in names if re.fullmatch(rf"{preset}(-\d+-seeds)?(-quick)?", name)]


def stored_claims(root: Path) -> dict[str, Any] | None:
    """What `offspan verify` left there, if it did."""
    path = root / "verify" / "claims.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        keys = {"label", "text", "measured", "relation", "predicted", "route", "verdict"}
        if not (isinstance(content["settings"], dict) and all(keys <= set(claim) for claim in content["claims"])):
            raise OffspanError("it lacks settings or claims")
        return content
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise OffspanError(f"{path} cannot be read ({error}); write it again with `offspan verify`.") from error


def _command(spec: Spec, path: Path) -> str:
    """What makes this run again."""
    if (name := preset_of(spec)) is not None:
        preset, count = load_preset(name), len(spec.seeds)
        variants = {
            f"offspan reproduce {name}": preset,
            f"offspan reproduce {name} --quick": preset.as_quick(),
            f"offspan reproduce {name} --seeds {count}": preset.with_seeds(count),
            f"offspan reproduce {name} --seeds {count} --quick": preset.with_seeds(count).as_quick(),
        }
        for command, variant in variants.items():
            if variant.digest() == spec.digest():
                return command
    return f"offspan run {path}"
