"""From a spec whose seen states are still to be chosen to one that `offspan run` takes."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from offspan.errors import OffspanError, check_known
from offspan.experiments.estimate import check_fits
from offspan.experiments.lqr import LQRSpec
from offspan.experiments.network import NetworkSpec
from offspan.experiments.registry import placed, spec_from
from offspan.experiments.spec import Matrix, Positive, Rate, Seed, Spec, Strict, filled, read_toml, to_toml, validated
from offspan.experiments.system import SystemSpec
from offspan.files import atomic_write_text, check_writable
from offspan.selection import Selection, select
from offspan.selection.methods import METHODS

CHOOSABLE = ("lqr", "network", "system")  # the kinds of specs whose initial states can be chosen


class Choose(Strict):
    """The table [choose] of a spec: k of the candidates, which for an LQR are e_1..e_dim unless given."""

    candidates: Matrix | None = None
    k: Positive
    method: str = "pilot"
    seed: Seed = 0
    scale: Rate = 1.0
    sets: Positive = 32
    pilot_iterations: Positive | None = None  # of the longest pilot run; the spec's own iterations by default


class Chosen(NamedTuple):
    """The choice, what was chosen from, the spec with it, and where that belongs."""

    selection: Selection
    candidates: np.ndarray
    spec: Spec
    path: Path


def choose(path: Path, method: str | None = None, *, output: Path | None = None, trust_code: bool = False) -> Chosen:
    """Reads a spec with a table [choose], and chooses; `method` takes the place of the table's.

    Where the chosen spec cannot be written, to `output` or beside `path`, that is said before the choice.
    """
    content = read_toml(path)
    table = content.pop("choose", None)
    if not isinstance(table, dict):
        raise OffspanError(f"{path} has no table [choose]; give it one, with `k` and, unless it is an LQR, `candidates`.")
    given = [key for key in ("seen", "seen_states", "unseen_states") if key in content]
    if given:
        raise OffspanError(f"{path} gives `{given[0]}`, which is what is to be chosen; leave it out.")
    asked = validated(Choose, {**table, **({"method": method} if method else {})}, str(path), inside="choose")
    return _choose(content, asked, path, output, trust_code)


def _choose(content: dict[str, Any], asked: Choose, path: Path, output: Path | None, trust_code: bool) -> Chosen:
    source = str(path)
    rows = asked.candidates
    if (of_kind := _kind(content)) not in CHOOSABLE:
        raise OffspanError(f"{source}: states are chosen for specs of the kinds {', '.join(CHOOSABLE)}, but `kind` is {of_kind!r}.")
    is_lqr, dim = of_kind == "lqr", content.get("dim")
    if is_lqr and not (isinstance(dim, list) and len(dim) == 1 and isinstance(dim[0], int) and 0 < dim[0] <= 1000):
        raise OffspanError(f"{source}: `dim` is {dim!r}, but must be a list of one number here, such as [3].")
    if rows is None and not is_lqr:
        raise OffspanError(f"{source}: `choose.candidates` is missing: the states to choose from.")
    rows = np.eye(content["dim"][0]).tolist() if rows is None else rows
    if asked.k >= len(rows):
        raise OffspanError(f"{source}: `choose.k` is {asked.k}, but there are {len(rows)} candidates, and one at least must stay unseen.")
    if len({tuple(row) for row in rows}) < len(rows):
        raise OffspanError(f"{source}: `choose.candidates` has a state twice; list each once.")
    if is_lqr and len(rows[0]) != content["dim"][0]:
        raise OffspanError(f"{source}: `choose.candidates` has states of length {len(rows[0])}, but `dim` is {content['dim']}.")
    check_known(f"{source}: there is no method", asked.method, METHODS)
    first = placed(spec_from(_with_states(content, rows, range(asked.k)), source), path, trust_code)
    check_fits(first)
    name = f"{first.name}-{asked.method}"
    check_target(target := output or path.with_name(f"{name}.toml"))
    with jax.enable_x64(first.precision == "float64"):
        selection, candidates = _select(first, asked, rows, source)
    spec = placed(spec_from(_with_states(content, rows, sorted(selection.indices.tolist())), source), path)
    return Chosen(selection, candidates, spec.model_copy(update={"name": name}), target)


def _kind(content: dict[str, Any]) -> Any:
    return content.get("kind", "system" if "system" in content else "lqr")


def _with_states(content: dict[str, Any], rows: list[list[float]], chosen: Any) -> dict[str, Any]:
    seen = [rows[i] for i in chosen]
    filled = {**content, "seen_states": seen}
    return {**filled, "unseen_states": [row for row in rows if row not in seen]} if _kind(content) == "network" else filled


def _select(spec: Spec, asked: Choose, rows: list[list[float]], source: str) -> tuple[Selection, np.ndarray]:
    options: dict[str, Any] = {"method": asked.method, "key": jax.random.key(asked.seed), "scale": asked.scale, "sets": asked.sets}
    options["iterations"] = asked.pilot_iterations or spec.iterations
    if isinstance(spec, LQRSpec):
        if not all(map(_one, (spec.systems, spec.horizon, spec.learning_rate, spec.seeds))):
            raise OffspanError(f"{source}: states are chosen for one system, horizon, learning rate and seed; give one of each.")
        problem = spec.problem(spec.systems[0], spec.seeds[0], spec.dim[0], spec.horizon[0])
        options["optimizer"] = optax.sgd(spec.learning_rate[0])
    elif isinstance(spec, NetworkSpec):
        problem = spec.make_problem()
        options["controllers"] = [spec.first_controller(problem, seed) for seed in spec.seeds]
        options["optimizer"] = spec.policy_gradient.transformation()
        options["stop"] = spec.stopping_rule()
    else:
        assert isinstance(spec, SystemSpec)
        problem, _ = spec.system.make()
        options["controllers"] = [spec.network.first(problem, spec.system, seed) for seed in spec.seeds]
        options |= spec.training.options(problem)
    candidates = filled(rows, problem.state_dim, spec.precision)
    return select(problem, candidates, asked.k, **options), candidates


def _one(values: Any) -> bool:
    return isinstance(values, list) and len(values) == 1


CHOSEN = "# Chosen by offspan select, which writes over it unless it was changed: "


def check_target(path: Path) -> None:
    """Whether a chosen spec may be written there: where there is nothing yet, or one of ours, as it was written."""
    check_writable(path, _is_as_chosen, "is no spec that offspan chose, or was changed since")


def _is_as_chosen(content: bytes) -> bool:
    first, _, text = content.decode(errors="replace").replace("\r\n", "\n").partition("\n")
    return first == CHOSEN + _checksum(text)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def save_chosen(spec: Spec, path: Path) -> None:
    """As TOML for `offspan run`."""
    if isinstance(spec, SystemSpec) and Path(spec.system.folder) == path.parent.resolve():  # so that both can be moved together
        spec = spec.model_copy(update={"system": spec.system.model_copy(update={"folder": ".", "fingerprint": ""})})
    check_target(path)
    text = to_toml(spec)
    atomic_write_text(path, f"{CHOSEN}{_checksum(text)}\n{text}")
