"""Run folders: what was asked, what came out, where it came from, and how far it is.

`spec.toml` as run, `result.nc`, `provenance.json`, `checkpoint/` while it is running, `figures/`. Nothing is ever unpickled.
"""

import hashlib
import importlib.metadata
import io
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import xarray as xr

import offspan
from offspan.errors import OffspanError
from offspan.experiments.specs.base import Spec
from offspan.experiments.specs.reading import load_spec, to_toml
from offspan.files import UNREADABLE, held, why, write_whole

State = TypeVar("State")
HALF_WRITTEN = re.compile(r"\.\d+\.(spec\.toml|result\.nc|provenance\.json)")  # by a process that was killed


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path):
        self.path = path
        self.spec_file, self.result_file, self.provenance_file = path / "spec.toml", path / "result.nc", path / "provenance.json"
        self.checkpoints, self.figures = path / "checkpoint", path / "figures"

    @contextmanager
    def claimed(self, spec: Spec) -> Iterator[None]:
        """This process alone works in the folder, which is made for the spec, or is the spec's already; any other folder is refused."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.path.mkdir()
        with held(self.path):
            self._claim(spec)
            yield

    def _claim(self, spec: Spec) -> None:
        if not self.path.is_dir():
            raise OffspanError(f"{self.path} is a file, where the run needs a folder; give the spec another `name`, or move the file away.")
        stored = self.spec() if self.spec_file.exists() else None
        halves = {path for path in self.path.iterdir() if HALF_WRITTEN.fullmatch(path.name)}
        if stored is None or stored.digest() != spec.digest():
            if stored is not None and (self.is_complete() or self.checkpoints.exists()):
                raise OffspanError(
                    f"{self.path} holds a run of another spec ({_difference(stored, spec)}); give yours another `name`, "
                    "or move that folder away."
                )
            if set(self.path.iterdir()) - halves - {self.spec_file}:
                raise OffspanError(
                    f"{self.path} is there already and is not a run of offspan; give the spec another `name`, or move it away."
                )
        for half in halves:
            half.unlink(missing_ok=True)
        if stored is not None and stored.digest() == spec.digest():
            return
        write_whole(self.spec_file, lambda path: path.write_text(to_toml(spec), encoding="utf-8"))

    def spec(self) -> Spec:
        return load_spec(self.spec_file)

    def is_complete(self) -> bool:
        return self.result_file.exists()

    def share_done(self) -> float:
        """How far a run that is not complete has come, from 0 to 1, by its checkpoints."""
        spec = self.spec()
        done = 0
        for path in self.checkpoints.glob("part-*.npz"):
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                done += int(stored["done"])
        return done / (spec.iterations * len(spec.part_weights()))

    def state(self) -> str:
        """In words, whatever is there."""
        try:
            if not self.is_complete():
                return f"{self.share_done():.0%} done"
            return "complete" if self._is_as_written(self.result_file.read_bytes()) else "damaged"
        except UNREADABLE:
            return "cannot be read"

    def save_checkpoint(self, spec: Spec, part: int, state: Any, seconds: float) -> None:
        """`state` is a named tuple of arrays and of lists of arrays; `name.3` in the file is the fourth array of the list `name`."""
        content: dict[str, Any] = {"digest": spec.digest(), "seconds": seconds}
        for name, value in state._asdict().items():
            content |= {f"{name}.{i}": one for i, one in enumerate(value)} if isinstance(value, list) else {name: value}
        arrays = {name: np.asarray(value) for name, value in content.items()}

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(file, allow_pickle=False, checksum=_checksum(arrays), **arrays)

        self.checkpoints.mkdir(exist_ok=True)
        write_whole(self.checkpoints / f"part-{part}.npz", write)

    def load_checkpoint(self, spec: Spec, part: int, kind: type[State]) -> tuple[State | None, float]:
        """The state of one part and the seconds spent on it, or (None, 0) where there is no checkpoint of this spec."""
        path = self.checkpoints / f"part-{part}.npz"
        if not path.exists():
            return None, 0.0
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            if str(arrays.pop("checksum")) != _checksum(arrays):
                raise OffspanError("it is not as it was written")
            if str(arrays.pop("digest")) != spec.digest():
                raise OffspanError("it belongs to another spec")
            seconds = float(arrays.pop("seconds"))
            fields: dict[str, Any] = {"done": int(arrays.pop("done"))}
            lists = {name.partition(".")[0] for name in arrays if "." in name}
            for name in lists:
                fields[name] = [arrays.pop(f"{name}.{i}") for i in range(sum(key.startswith(f"{name}.") for key in arrays))]
            return kind(**arrays, **fields), seconds
        except UNREADABLE as error:
            raise OffspanError(f"the checkpoint {path} cannot be used ({why(error)}); delete it to start that part again.") from error

    def drop_checkpoints(self) -> None:
        for path in self.checkpoints.glob("*.npz"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not there, or somebody put something of their own into it
            self.checkpoints.rmdir()

    def save_result(self, result: xr.Dataset, origin: dict[str, Any]) -> None:
        """The result, and where it comes from, which has the result's checksum."""
        # Made in memory and written in one go: a full disk is then one plain error, and the old file stays.
        compressed = {name: {"zlib": True, "complevel": 4} for name, variable in result.data_vars.items() if variable.ndim}
        content = bytes(result.to_netcdf(engine="h5netcdf", encoding=compressed))
        text = json.dumps({**origin, "result": hashlib.sha256(content).hexdigest()}, indent=2) + "\n"
        write_whole(self.provenance_file, lambda path: path.write_text(text, encoding="utf-8"))
        write_whole(self.result_file, lambda path: path.write_bytes(content))

    def _is_as_written(self, result: bytes) -> bool:
        """By the checksum that was written with it, if there was one."""
        checksum = hashlib.sha256(result).hexdigest()
        return self.provenance().get("result", checksum) == checksum

    def load_result(self) -> xr.Dataset:
        if not self.result_file.exists():
            raise OffspanError(f"{self.path} has no result yet.")
        content = self.result_file.read_bytes()
        if not self._is_as_written(content):
            raise OffspanError(
                f"{self.result_file} is not the file that the run wrote (its sha256 differs from that in {self.provenance_file.name}); "
                "delete it and run the spec again."
            )
        found = _read(content)
        if isinstance(found, str):
            raise OffspanError(f"{self.result_file} is cut short or no result file ({found}); delete it and run the spec again.")
        return found

    def save_report(
        self, figures: dict[str, tuple[Any, Any]], tables: dict[str, str], animations: Mapping[str, list[Any]] | None = None
    ) -> list[Path]:
        """Figures as PNG and PDF, the data behind them as CSV, tables as text, animations as GIF; what was written, without the twins."""
        self.figures.mkdir(exist_ok=True)
        for name, (figure, data) in figures.items():
            write_whole(self.figures / f"{name}.png", lambda path, figure=figure: figure.savefig(path, dpi=200))
            write_whole(self.figures / f"{name}.pdf", lambda path, figure=figure: figure.savefig(path))
            write_whole(self.figures / f"{name}.csv", lambda path, data=data: data.to_csv(path, index=False))
        for name, text in tables.items():
            write_whole(self.figures / name, lambda path, text=text: path.write_text(text, encoding="utf-8"))
        moving = animations or {}
        for name, (first, *others) in moving.items():
            options = {"format": "GIF", "save_all": True, "append_images": others, "duration": [60] * len(others) + [1500], "loop": 0}
            write_whole(self.figures / f"{name}.gif", lambda path, first=first, options=options: first.save(path, **options))
        names = [*(f"{name}.png" for name in figures), *tables, *(f"{name}.gif" for name in moving)]
        return [self.figures / name for name in names]

    def provenance(self) -> dict[str, Any]:
        """Empty where there is none that can be read."""
        try:
            content = json.loads(self.provenance_file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def _read(content: bytes) -> xr.Dataset | str:
    """What is in a netCDF file, or why it cannot be read."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # a file that h5netcdf could not open complains again when it is dropped
    try:
        return xr.load_dataset(io.BytesIO(content), engine="h5netcdf")
    except Exception as error:  # what is raised of a damaged file has no common class
        return why(error)
    finally:
        sys.unraisablehook = hook


def provenance(spec: Spec) -> dict[str, Any]:
    """Where a result comes from; asked at the start, since a checkout may move on while a long run goes on with the code it loaded."""
    packages = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "xarray")
    device = jax.devices()[0]
    return {
        "offspan": offspan.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "machine": {"system": platform.system(), "processor": platform.machine()},
        "devices": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "precision": spec.precision,
        "seeds": spec.seeds,
    }


def _commit() -> str | None:
    """The commit of the checkout that offspan runs from, if it is one; with a plus sign if files differ from it."""
    package = Path(offspan.__file__)

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(package.parent), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", package.name)  # an environment may lie in a checkout of something else
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _checksum(arrays: dict[str, np.ndarray]) -> str:
    """Of all numbers, their names, types and shapes."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return found.hexdigest()


def _difference(stored: Spec, given: Spec) -> str:
    """`iterations` 100 there, 200 here; …"""
    ours, theirs = stored.model_dump(), given.model_dump()
    changes = [
        f"`{key}` is {_short(ours[key])} there and {_short(theirs[key])} here"
        for key in ours
        if ours[key] != theirs[key] and key != "title"
    ]
    return "; ".join(changes)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def find_runs(root: Path) -> list[RunFolder]:
    """The run folders under `root`, by name."""
    if not root.is_dir():
        return []
    return [RunFolder(path) for path in sorted(root.iterdir()) if (path / "spec.toml").is_file()]
