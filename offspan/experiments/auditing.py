"""From a spec that names a system, a controller and a region to an audit of it."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from offspan.audit import Audit, audit
from offspan.errors import OffspanError
from offspan.experiments import network, system
from offspan.experiments.checkpoints import load_arrays, save_arrays
from offspan.experiments.mapping import as_run
from offspan.experiments.registry import load_spec, placed
from offspan.experiments.spec import Arrays
from offspan.experiments.store import RunFolder
from offspan.experiments.system import SystemSpec
from offspan.experiments.tables import ControllerTable
from offspan.files import lock, make_folder, read_arrays, read_bytes
from offspan.problems import Problem
from offspan.sizes import free_memory


def audit_file(
    path: Path,
    runs: Path,
    finish: Callable[[SystemSpec, Audit], Any],
    *,
    trust_code: bool = False,
    progress: Callable[[float], Any] | None = None,
) -> None:
    """Audits what the spec names, and calls `finish` with what was found.

    Without a table [controller], the controller is that of the finished run of the same spec in the folder `runs`. What is done is kept in
    that folder until `finish` has returned, so that an audit that was stopped or killed continues.
    """
    spec: Any = load_spec(path, trust_code=trust_code)
    if not isinstance(spec, SystemSpec):
        raise OffspanError(f"{path} is a spec of the kind {spec.kind}, but an audit needs a table [system].")
    if not spec.region:
        raise OffspanError(f"{path}: `region` is missing: the interval of each coordinate that varies, such as [region] 0 = [-1.0, 1.0].")
    with jax.enable_x64(spec.precision == "float64"):
        problem, controller, origin = _loaded(spec, runs, trust_code)
        region, success = spec.intervals("region", problem), spec.succeeds(problem)
        retrain = spec.retrain
        with kept_parts(runs / f".audit-{spec.name}", hashlib.sha256(f"{spec.audit_digest()} {origin}".encode()).hexdigest()) as parts:
            found = audit(
                problem,
                controller,
                spec.seen(problem),
                region,
                success=success,
                at=spec.at,
                states=spec.states,
                points=spec.points,
                worst=spec.worst,
                add=spec.add,
                key=jax.random.key(spec.seed),
                retrain=None if retrain is None else {**retrain.options(problem), "iterations": retrain.iterations},
                progress=progress,
                memory=parts,
            )
            finish(spec, found)


@contextlib.contextmanager
def kept_parts(folder: Path, digest: str) -> Iterator["KeptParts"]:
    """Parts of an audit on disk, locked for this process, and removed where all went well; nothing empty is left of what is made here."""
    if folder.is_symlink():
        raise OffspanError(f"{folder} is a link, and an audit writes only into its own folder; remove the link.")
    made = [path for path in folder.parents if not path.exists()]
    make_folder(folder)
    with lock(folder):
        parts = KeptParts(folder, digest)
        try:
            yield parts
            for path in parts.written:
                path.unlink(missing_ok=True)
        finally:
            with contextlib.suppress(OSError):  # with parts of this audit or of another one of that name, or with files that are not ours
                for path in (folder, *made):
                    path.rmdir()


class KeptParts:
    """Arrays by name, each a file in a folder; those of another digest, or damaged, are as if they were not there."""

    def __init__(self, folder: Path, digest: str):
        self.folder, self.digest = folder, digest
        self.written: set[Path] = set()

    def get(self, name: str, default: Any = None) -> Any:
        path = self.folder / f"{name}.npz"
        try:
            arrays = load_arrays(path, self.digest)
        except FileNotFoundError:
            return default
        except OffspanError:
            if _is_of_others(path):
                raise OffspanError(f"{path} is in the way of this audit, as it is no part of one; move it away.") from None
            return default
        self.written.add(path)
        return arrays

    def __setitem__(self, name: str, arrays: Arrays) -> None:
        path = self.folder / f"{name}.npz"
        save_arrays(path, arrays, self.digest)
        self.written.add(path)


def _is_of_others(path: Path) -> bool:
    """Whether it holds arrays that no audit wrote; one that cannot be read is a part that was damaged."""
    with contextlib.suppress(OffspanError):
        return not {"checksum", "digest"} <= read_arrays(path).keys()
    return False


def _loaded(spec: SystemSpec, runs: Path, trust_code: bool) -> tuple[Problem, Any, str]:
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
    if asked.run is not None:
        folder = RunFolder(Path(spec.system.folder) / asked.run)
        return problem, _controller_of(folder, trust_code), _hash(folder.result_file)
    folder = RunFolder(runs / spec.name)
    if not folder.is_complete():
        raise OffspanError(
            f"there is nothing to audit: give the spec a table [controller], or train one first with `offspan run` ({folder.path})."
        )
    as_run(folder, spec)
    return problem, _controller_of(folder, trust_code), _hash(folder.result_file)


def _controller_of(folder: RunFolder, trust_code: bool) -> Any:
    run, result = placed(folder.spec(), folder.spec_file, trust_code), folder.load_result()
    if isinstance(run, SystemSpec):
        return system.shown_controller(run, result)
    if isinstance(run, network.NetworkSpec):
        return network.shown_controller(run, result)
    raise OffspanError(f"{folder.path} is a run of the kind {run.kind}, but an audit needs one of the kinds network and system.")


def _hash(path: Path) -> str:
    return hashlib.sha256(read_bytes(path, free_memory() / 4)).hexdigest()
