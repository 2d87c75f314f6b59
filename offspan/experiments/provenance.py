"""Where a result comes from: versions, machine, precision, seeds and the commit."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

import offspan
from offspan.experiments.spec import Spec


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
