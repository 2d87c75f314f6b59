"""The statements of the theory as tasks, one each."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offspan.errors import OffspanError
from offspan.experiments.checkpoints import Checkpoint
from offspan.experiments.executor import Executor, Progress
from offspan.experiments.spec import Arrays, OnChunk, Task
from offspan.files import check_folder, check_writable, is_there
from offspan.theory.claims import Claim, Settings
from offspan.theory.verify import STATEMENTS, checked_settings, claims_of


@dataclass(frozen=True)
class Verification:
    """Statements as work for an executor. Asked for by name, one that the settings do not fit is an error."""

    settings: Settings
    by_name: bool

    def digest(self) -> str:
        return hashlib.sha256(self.to_text().encode()).hexdigest()

    def to_text(self) -> str:
        return json.dumps({"settings": self.settings._asdict(), "by_name": self.by_name})

    @classmethod
    def from_text(cls, text: str) -> "Verification":
        content = json.loads(text)
        return cls(Settings(**content["settings"]), content["by_name"])

    def check_travels(self, this_machine: bool) -> None: ...

    def run_task(self, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
        on_chunk(0.0, {})  # which statement it is shows at its beginning
        return {"claims": np.asarray(json.dumps([list(claim) for claim in claims_of(name, self.settings, self.by_name)]))}


def check_place(folder: Path, names: Sequence[str]) -> None:
    """Raises where claims cannot be written to files of these names, or would be written into a run or over what are no claims."""
    check_folder(folder)
    if is_there(folder / "spec.toml"):
        raise OffspanError(f"{folder} holds a run; name another folder for the claims with --folder.")
    for name in names if folder.is_dir() else ():
        check_writable(folder / name, _are_claims, "was not written by offspan verify")


def _are_claims(content: bytes) -> bool:
    return content.startswith(b'{\n  "offspan":') or (content.startswith(b"# ") and b" claims hold" in content[:400])


def verify_on(executor: Executor, labels: Sequence[str], settings: Settings, progress: Progress) -> list[Claim]:
    """The claims of `offspan.theory.verify`, in its order."""
    work, kept = Verification(checked_settings(labels, settings), bool(labels)), dict[str, Checkpoint]()
    asked = list(dict.fromkeys(labels or STATEMENTS))
    executor.run(work, [Task(label, 1.0) for label in asked], kept, progress)
    return [Claim(*claim) for label in labels or STATEMENTS for claim in json.loads(str(kept[label].arrays["claims"]))]
