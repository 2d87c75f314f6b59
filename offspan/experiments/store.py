"""Run folders: what was asked, what came out, where it came from, and how far it is.

`spec.toml` as run, `result.nc`, `provenance.json`, `checkpoint/` while it is running, `figures/`. Nothing is ever unpickled.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from offspan.errors import OffspanError, nearest
from offspan.experiments.checkpoints import Checkpoint, checksum, load_arrays, save_arrays
from offspan.experiments.netcdf import read_netcdf
from offspan.experiments.registry import check_result, kind, load_spec, preset_names
from offspan.experiments.spec import Spec, result_attributes, to_toml
from offspan.files import (
    atomic_write,
    atomic_write_text,
    excerpt,
    is_there,
    lock,
    make_folder,
    read_bytes,
    remove_abandoned,
    temporaries,
    without_formulas,
)
from offspan.sizes import free_memory

RESTORE = "put back the file that the run wrote, or move the folder away and run the spec again"


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path):
        self.path = path
        self.spec_file, self.result_file, self.provenance_file = path / "spec.toml", path / "result.nc", path / "provenance.json"
        self.checkpoints, self.figures = path / "checkpoint", path / "figures"

    @contextmanager
    def claimed(self, spec: Spec) -> Iterator[None]:
        """Locks the folder for this process. It is made for the spec, or is the spec's already; any other folder is refused."""
        make_folder(self.path.parent)
        with suppress(FileExistsError):
            self.path.mkdir()
        if not self.path.is_dir():
            raise OffspanError(f"{self.path} is a file, where the run needs a folder; give the spec another `name`, or move the file away.")
        with lock(self.path):
            self._claim(spec)
            yield

    def _claim(self, spec: Spec) -> None:
        stored = self.spec() if self.spec_file.exists() else None
        own = self.spec_file, self.result_file, self.provenance_file
        leftovers = {left for file in own for left in temporaries(file)}  # by a process that was killed
        if stored is None or stored.digest() != spec.digest():
            if stored is not None and (self.is_complete() or self.checkpoints.exists()):
                raise OffspanError(
                    f"{self.path} holds a run of another spec ({difference(stored, spec)}); give yours another `name`, "
                    "or move that folder away."
                )
            if set(self.path.iterdir()) - leftovers - {self.spec_file}:
                raise OffspanError(
                    f"{self.path} is there already and is not a run of offspan; give the spec another `name`, or move it away."
                )
        for file in own:
            remove_abandoned(file)
        if stored is not None and stored.digest() == spec.digest():
            return
        atomic_write_text(self.spec_file, to_toml(spec))

    def spec(self) -> Spec:
        return load_spec(self.spec_file)

    def is_complete(self) -> bool:
        return is_there(self.result_file)

    def share_done(self) -> float:
        """How far a run that is not complete has come, from 0 to 1, by its checkpoints."""
        spec = self.spec()
        tasks = kind(spec.kind).tasks(spec)
        found = [(task, self.load_checkpoint(spec, task.name)) for task in tasks]
        done = [task.weight * checkpoint.share for task, checkpoint in found if checkpoint is not None]
        return sum(done) / sum(task.weight for task in tasks)

    def state(self) -> str:
        """In words, whatever is there."""
        try:
            if not self.is_complete():
                return f"{self.share_done():.0%} done"
            if "result" in self.provenance():
                return "complete" if self._is_as_written(self._content()) else "damaged"
        except (OffspanError, OSError):
            return "cannot be read"
        try:
            self.load_result()
            return "complete"
        except (OffspanError, OSError):
            return "damaged"

    def _checkpoint(self, task: str) -> Path:
        return self.checkpoints / f"{task}.npz"

    def save_checkpoint(self, spec: Spec, task: str, checkpoint: Checkpoint) -> None:
        self._make(self.checkpoints)
        save_arrays(self._checkpoint(task), checkpoint.to_arrays(), spec.digest())

    def load_checkpoint(self, spec: Spec, task: str) -> Checkpoint | None:
        """Of a task of this spec, if there is one."""
        path = self._checkpoint(task)
        if not path.exists():
            return None
        try:
            return Checkpoint.from_arrays(load_arrays(path, spec.digest()))
        except (LookupError, TypeError, ValueError, RecursionError) as error:  # of numbers and texts that are not as we write them
            raise OffspanError(
                f"the checkpoint {path} cannot be used ({excerpt(error)}); put back the file that the run wrote, or move it away to start "
                "that task again."
            ) from error

    def drop_checkpoints(self, tasks: Iterable[str]) -> None:
        """Those of these tasks, and what a killed process left half written of them; nothing else, and nothing behind a link."""
        if self.checkpoints.is_symlink():
            return
        for task in tasks:
            self._checkpoint(task).unlink(missing_ok=True)
            remove_abandoned(self._checkpoint(task))
        with suppress(OSError):  # not there, or somebody put something of their own into it
            self.checkpoints.rmdir()

    def _make(self, folder: Path) -> None:
        if folder.is_symlink():
            raise OffspanError(f"{folder} is a link, and a run writes only into its own folder; remove the link, or put a folder there.")
        make_folder(folder)

    def save_result(self, spec: Spec, result: xr.Dataset, origin: dict[str, Any]) -> xr.Dataset:
        """The result, with the digest of the spec that it is of and a checksum of its own; and where it comes from. As it is written."""
        result = result.assign_attrs(spec_digest=spec.digest())
        result = result.assign_attrs(checksum=_checksum_of_result(result))
        # Made in memory and written in one go: a full disk is then one plain error, and the old file stays.
        compressed = {name: {"zlib": True, "complevel": 4} for name, variable in result.data_vars.items() if variable.ndim}
        content = bytes(result.to_netcdf(engine="h5netcdf", encoding=compressed))
        text = json.dumps({**origin, "result": hashlib.sha256(content).hexdigest()}, indent=2) + "\n"
        atomic_write_text(self.provenance_file, text)
        atomic_write(self.result_file, lambda path: path.write_bytes(content))
        return result

    def _is_as_written(self, result: bytes) -> bool:
        """By the checksum that was written with it, if there was one."""
        checksum = hashlib.sha256(result).hexdigest()
        return self.provenance().get("result", checksum) == checksum

    def _content(self) -> bytes:
        return read_bytes(self.result_file, free_memory() / 4)  # what is in it is larger

    def load_result(self) -> xr.Dataset:
        """As the run wrote it, and of the spec that is there."""
        if not self.result_file.exists():
            raise OffspanError(f"{self.path} has no result yet.")
        content = self._content()
        if not self._is_as_written(content):
            raise OffspanError(
                f"{self.result_file} is not the file that the run wrote: its sha256 differs from that in {self.provenance_file.name}; "
                f"{RESTORE}."
            )
        found = read_netcdf(content)
        if isinstance(found, str):
            raise OffspanError(f"{self.result_file} is cut short or no result file ({found}); {RESTORE}.")
        try:
            check_result(found)
        except OffspanError as error:
            raise OffspanError(f"{self.result_file} is not the result of a run ({error}); {RESTORE}.") from error
        self._check_belongs(found)
        return found

    def _check_belongs(self, result: xr.Dataset) -> None:
        """Raises where a result was altered, or is that of another spec. Results of version 0.1 say less of themselves."""
        try:
            checksum = _checksum_of_result(result)
        except TypeError:  # of bytes, or of a table, which no result has
            checksum = ""
        if result.attrs.get("checksum", checksum) != checksum or not checksum:
            raise OffspanError(f"{self.result_file} is not as the run wrote it: its numbers do not have the checksum in it; {RESTORE}.")
        spec = self.spec()
        if "spec_digest" in result.attrs:
            differs = result.attrs["spec_digest"] != spec.digest()
        else:
            expected = result_attributes(spec)
            differs = any(result.attrs.get(key) != expected[key] for key in ("iterations", "precision"))
        if differs:
            raise OffspanError(
                f"{self.result_file} is the result of another spec than {self.spec_file.name} beside it; put back the spec that it "
                "was made with, or give yours another `name` and run it."
            )

    def save_report(
        self, figures: dict[str, tuple[Any, Any]], tables: dict[str, str], animations: Mapping[str, list[Any]] | None = None
    ) -> list[Path]:
        """Figures as PNG and PDF, the data behind them as CSV, tables as text, animations as GIF.

        Returns the paths of the PNGs, tables and GIFs.
        """
        self._make(self.figures)
        for name, (figure, data) in figures.items():
            atomic_write(self.figures / f"{name}.png", lambda path, figure=figure: figure.savefig(path, dpi=200))
            figure.set_layout_engine("none")  # the layout stays as it was found; finding it takes half of the time
            atomic_write(self.figures / f"{name}.pdf", lambda path, figure=figure: figure.savefig(path))
            atomic_write(self.figures / f"{name}.csv", lambda path, data=data: without_formulas(data).to_csv(path, index=False))
        for name, text in tables.items():
            atomic_write_text(self.figures / name, text)
        moving = animations or {}
        for name, (first, *others) in moving.items():
            options = {"format": "GIF", "save_all": True, "append_images": others, "duration": _durations(len(others) + 1), "loop": 0}
            atomic_write(self.figures / f"{name}.gif", lambda path, first=first, options=options: first.save(path, **options))
        names = [*(f"{name}.png" for name in figures), *tables, *(f"{name}.gif" for name in moving)]
        return [self.figures / name for name in names]

    def provenance(self) -> dict[str, Any]:
        """Empty where there is none that can be read."""
        try:
            content = json.loads(read_bytes(self.provenance_file))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def _durations(frames: int) -> list[int]:
    """Of each frame of an animation, in milliseconds: a pause at the first one, and a longer one at the last."""
    return [600, *[60] * (frames - 2), 2000][:frames]


def _checksum_of_result(result: xr.Dataset) -> str:
    """Of all numbers, texts and attributes but the checksum itself, the same before a file is written and after it is read."""

    def plain(value: Any) -> str:
        return json.dumps(np.asarray(value).tolist())

    texts = {f"attribute {name}": np.asarray(plain(value)) for name, value in result.attrs.items() if name != "checksum"}
    arrays = {str(name): variable.values for name, variable in result.variables.items()}
    arrays = {name: values if values.dtype.kind in "fiub" else np.asarray(plain(values)) for name, values in arrays.items()}
    shapes = {f"axes of {name}": np.asarray(plain(variable.dims)) for name, variable in result.variables.items()}
    return checksum({**texts, **arrays, **shapes})


def difference(stored: Spec, given: Spec) -> str:
    """`iterations` 100 there, 200 here; …"""
    ours, theirs = (_flat(spec.model_dump(exclude={"title": True, "system": {"folder"}})) for spec in (stored, given))
    if ours.get("system.fingerprint") != theirs.get("system.fingerprint"):
        return "the file that `system` names has changed since"
    changed = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return "; ".join(f"`{key}` is {_short(ours.get(key))} there and {_short(theirs.get(key))} here" for key in changed)


def _flat(content: dict[str, Any], inside: str = "") -> dict[str, Any]:
    """With the keys of tables as `table.key`."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= _flat(value, f"{inside}{key}.") if isinstance(value, dict) else {f"{inside}{key}": value}
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def beside(spec: Spec, root: Path) -> xr.Dataset | None:
    """The result that a spec is compared with, if it names one and that is there."""
    if (other := getattr(spec, "compare_with", None)) is None or not RunFolder(root / other).is_complete():
        return None
    result = RunFolder(root / other).load_result()
    if (of_kind := result.attrs.get("kind", "lqr")) != spec.kind:
        raise OffspanError(
            f"{spec.name}: `compare_with` names {other}, a run of the kind {of_kind}; name one of the kind {spec.kind}, or leave it out."
        )
    return result


def find_run(root: Path, name: str) -> RunFolder:
    """The folder of a run; `.load_result()` is its dataset."""
    known = [run.path.name for run in find_runs(root)]
    if name not in known:
        made_by = f"; it is a preset: `offspan reproduce {name}` makes that run" if name in preset_names() else nearest(name, known)
        raise OffspanError(f"there is no run {name!r} in {root}{made_by}.")
    return RunFolder(root / name)


def find_runs(root: Path) -> list[RunFolder]:
    """The run folders under `root`, by name; with those that may be, as they cannot be looked into."""

    def may_be(path: Path) -> bool:
        try:
            return is_there(path / "spec.toml")
        except PermissionError:
            return True

    if root.exists() and not root.is_dir():
        raise OffspanError(f"{root} is a file, where a folder of runs is expected; name another one with --folder.")
    return [RunFolder(path) for path in sorted(root.iterdir()) if may_be(path)] if root.is_dir() else []
