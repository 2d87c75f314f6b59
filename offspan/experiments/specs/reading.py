"""Specs from files: presets by name, TOML files of one's own, and matrices beside them. A mistake becomes one sentence."""

import importlib.resources
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import tomli_w

from offspan.errors import OffspanError, nearest
from offspan.experiments.specs.base import Spec
from offspan.experiments.specs.lqr import LQRSpec, Matrices, StartsSpec
from offspan.experiments.specs.network import Adversarial, NetworkSpec, Objective
from offspan.experiments.specs.selection import SelectionSpec
from offspan.files import UNREADABLE, why

KINDS: dict[str, type[Spec]] = {"lqr": LQRSpec, "starts": StartsSpec, "network": NetworkSpec, "selection": SelectionSpec}


def load_preset(name: str) -> Spec:
    if name not in preset_names():
        raise OffspanError(f"there is no preset {name!r}{nearest(name, preset_names())}; `offspan list` shows them all.")
    text = (importlib.resources.files("offspan.experiments") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    return spec_from(tomllib.loads(text), f"preset {name}")


def preset_names() -> list[str]:
    folder = importlib.resources.files("offspan.experiments") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def presets_for(name: str) -> list[str]:
    """The preset of that name, or all whose names begin with it and a dash."""
    if name in preset_names():
        return [name]
    group = [preset for preset in preset_names() if preset.startswith(f"{name}-")]
    return group or [load_preset(name).name]  # which says what there is


def preset_of(spec: Spec) -> str | None:
    """The preset whose settings these are, whatever the name, the seeds and the iterations."""
    free = {"name", "title", "seeds", "iterations", "quick", "quick_iterations", "compare_with"}
    ours = spec.model_dump(exclude=free)
    return next((name for name in preset_names() if load_preset(name).model_dump(exclude=free) == ours), None)


def load_spec(path: Path) -> Spec:
    """Reads a spec; `file = "….npz"` under a system's matrices stands for the arrays A, B, Q, R in that file, beside the spec."""
    return spec_from(read_toml(path), str(path))


def to_toml(spec: Spec) -> str:
    """What `load_spec` reads, with a list of numbers on one line."""
    text = tomli_w.dumps(spec.model_dump(exclude_none=True))
    innermost = re.compile(r"\[\n\s*([^\[\]]*?),\n\s*\]")
    shorter = innermost.sub(lambda found: "[" + ", ".join(item.strip() for item in found[1].split(",\n")) + "]", text)
    return shorter if tomllib.loads(shorter) == tomllib.loads(text) else text  # brackets in a string, say


def read_toml(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OffspanError(f"there is no file {str(path)!r}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OffspanError(f"{path} is not a TOML file: {error}.") from error
    content.setdefault("name", path.stem)
    matrices = content.get("matrices", {})
    for own in matrices.values() if isinstance(matrices, dict) else ():
        if isinstance(own, dict) and "file" in own:
            own.update(_read_npz(path.parent / str(own.pop("file"))))
    return content


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name], float).tolist() for name in arrays.files}
    except FileNotFoundError:
        raise OffspanError(f"there is no file {str(path)!r}.") from None
    except UNREADABLE as error:
        raise OffspanError(f"{path} is not an .npz file of numbers ({why(error)}); write it with numpy.savez(path, A=…, B=…).") from error


def first_mistake(error: pydantic.ValidationError) -> Any:
    """A key misspelt is also a key missing; the misspelling is the better news."""
    return next((one for one in error.errors() if one["type"] == "extra_forbidden"), error.errors()[0])


def spec_from(content: dict[str, Any], source: str) -> Spec:
    """`source` is named in errors."""
    kind = content.setdefault("kind", "lqr")
    if not isinstance(kind, str) or kind not in KINDS:
        raise OffspanError(f"{source}: there is no kind {kind!r}{nearest(str(kind), list(KINDS))}; there are {', '.join(KINDS)}.")
    try:
        return KINDS[kind].model_validate(content)
    except pydantic.ValidationError as error:
        first = first_mistake(error)
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            *inside, key = map(str, first["loc"])
            if [*inside, key] == ["choose"]:
                raise OffspanError(f"{source}: its states are still to be chosen; `offspan select` writes a spec that runs.") from None
            tables = {"matrices": Matrices, "policy_gradient": Objective, "minimal_cost": Objective, "non_extrapolating": Adversarial}
            model = tables[inside[0]] if inside else KINDS[kind]
            known = list(model.model_fields)
            hint = nearest(key, known) or (f"; there are {', '.join(known)}" if inside else "")
            raise OffspanError(f"{source}: there is no key {place!r}{hint}.") from None
        message = first["msg"].removeprefix("Value error, ").rstrip(".")
        if first["type"] == "list_type":
            message = "must be a list, in brackets"
        where = f"`{place}`: " if place else ""
        given = f" (given: {first['input']!r})" if place and not isinstance(first["input"], dict | list) else ""
        raise OffspanError(f"{source}: {where}{message}{given}.") from None
