"""From a spec that names a system, a controller and a region to an audit of it."""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from offspan.audit import Audit, audit
from offspan.errors import OffspanError
from offspan.experiments import network, system
from offspan.experiments.registry import load_spec
from offspan.experiments.spec import Arrays
from offspan.experiments.store import RunFolder, load_arrays, save_arrays
from offspan.experiments.system import SystemSpec
from offspan.experiments.tables import ControllerTable
from offspan.problems import Problem


def audit_file(
    path: Path, runs: Path, *, trust_code: bool = False, progress: Callable[[float], Any] | None = None
) -> tuple[SystemSpec, Audit]:
    """Without a table [controller], the controller is that of the finished run of the same spec in the folder `runs`.

    What is done is kept beside the spec until the audit is complete, so that one that was stopped or killed continues.
    """
    spec: Any = load_spec(path, trust_code=trust_code)
    if not isinstance(spec, SystemSpec):
        raise OffspanError(f"{path} is a spec of the kind {spec.kind}, but an audit needs a table [system].")
    if spec.region is None:
        raise OffspanError(f"{path}: `region` is missing: the interval of each coordinate that varies, such as [region] 0 = [-1.0, 1.0].")
    with jax.enable_x64(spec.precision == "float64"):
        problem, controller, origin = _loaded(spec, runs)
        n = problem.state_dim
        region, success = (_by_coordinate(path, name, getattr(spec, name), n) for name in ("region", "success"))
        if wrong := [d for d in spec.angles if d not in (success or {})]:
            raise OffspanError(f"{path}: `angles` names coordinate {wrong[0]}, of which `success` says nothing; leave it out.")
        retrain = spec.retrain
        with_file = hashlib.sha256(f"{spec.digest()} {origin}".encode()).hexdigest()
        memory = Parts(path.with_name(f".{path.stem}.audit"), with_file)
        found = audit(
            problem,
            controller,
            spec.seen(problem),
            region,
            success=None if success is None else _within(success, spec.angles),
            at=spec.at,
            states=spec.states,
            points=spec.points,
            worst=spec.worst,
            add=spec.add,
            key=jax.random.key(spec.seed),
            retrain=None if retrain is None else {**retrain.options(problem), "iterations": retrain.iterations},
            progress=progress,
            memory=memory,
        )
        memory.remove()
        return spec, found


class Parts(MutableMapping[str, Arrays]):
    """Arrays by name, each a file in a folder; those of another digest, or damaged, are as if they were not there."""

    def __init__(self, folder: Path, digest: str):
        self.folder, self.digest = folder, digest

    def __getitem__(self, name: str) -> Arrays:
        try:
            return load_arrays(self._path(name), self.digest)
        except (OffspanError, FileNotFoundError):
            raise KeyError(name) from None

    def __setitem__(self, name: str, arrays: Arrays) -> None:
        self.folder.mkdir(exist_ok=True)
        save_arrays(self._path(name), arrays, self.digest)

    def __delitem__(self, name: str) -> None:
        self._path(name).unlink()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in self.folder.glob("*.npz"))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npz"


def _loaded(spec: SystemSpec, runs: Path) -> tuple[Problem, Any, str]:
    """The problem, the controller, and a hash of the file that it came from."""
    problem, made = spec.system.make()
    asked = spec.controller
    if made is not None and asked != ControllerTable():
        raise OffspanError(f"{spec.system.factory!r} returned a controller, so that the table [controller] has no effect; leave one out.")
    if made is not None:
        return problem, made, ""
    if asked.gain is not None:
        return problem, asked.load(spec.system, spec.precision), ""
    if asked.policy is not None:
        return problem, asked.load(spec.system, spec.precision), _hash(Path(spec.system.folder) / asked.policy)
    folder = RunFolder(Path(spec.system.folder) / asked.run) if asked.run is not None else RunFolder(runs / spec.name)
    if asked.run is None and not folder.is_complete():
        raise OffspanError(
            f"there is nothing to audit: give the spec a table [controller], or train one first with `offspan run` ({folder.path})."
        )
    return problem, _controller_of(folder, problem), _hash(folder.result_file)


def _controller_of(folder: RunFolder, problem: Problem) -> Any:
    run, result = folder.spec(), folder.load_result()
    if isinstance(run, SystemSpec):
        return system.shown_controller(run, result, problem)
    if isinstance(run, network.NetworkSpec):
        return network.shown_controller(run, result)
    raise OffspanError(f"{folder.path} is a run of the kind {run.kind}, but an audit needs one of the kinds network and system.")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _by_coordinate(path: Path, name: str, table: Mapping[str, list[float]] | None, n: int) -> dict[int, tuple[float, float]] | None:
    if table is None:
        return None
    if wrong := [d for d in table if not d.isdigit() or int(d) >= n]:
        raise OffspanError(f"{path}: `{name}` has an entry {wrong[0]!r}, but coordinates are 0 to {n - 1}.")
    if wrong := [d for d, (low, high) in table.items() if low >= high]:
        raise OffspanError(f"{path}: `{name}.{wrong[0]}` is {table[wrong[0]]}, but must be an interval [low, high].")
    return {int(d): (low, high) for d, (low, high) in table.items()}


def _within(intervals: dict[int, tuple[float, float]], angles: list[int]) -> Callable[..., Any]:
    def success(x):
        inside = jnp.asarray(True)
        for d, (low, high) in intervals.items():
            middle = (low + high) / 2
            away = jnp.arctan2(jnp.sin(x[d] - middle), jnp.cos(x[d] - middle)) if d in angles else x[d] - middle
            inside &= jnp.abs(away) <= (high - low) / 2
        return inside

    return success
