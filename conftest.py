"""Every test runs in float64, with shapes checked and with rank promotion an error."""

import importlib.metadata
import os
from pathlib import Path

# Most of the tests' time is compilation, and most programs run once. Processes that a test starts inherit this, so that bits can be
# compared; `XLA_FLAGS= pytest` compiles as a user does.
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones do not know it, and an unknown flag ends the process
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

import hypothesis
import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)  # so that shares of a batch, and uneven ones, are tested wherever the tests run

# Shapes are checked as types, but not in the combinatorics of `genus`: whole numbers, and calls by the hundred thousand.
PACKAGE = Path(__file__).parent / "offspan"
MODULES = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")]
jaxtyping.install_import_hook([name for name in MODULES if not name.endswith((".__init__", ".genus"))], "beartype.beartype")

# A first call compiles, so a deadline would measure the compiler; the same examples each time, so that a failure can be repeated.
hypothesis.settings.register_profile("offspan", deadline=None, derandomize=True, max_examples=4)
hypothesis.settings.register_profile("fast", hypothesis.settings.get_profile("offspan"), max_examples=3)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("offspan"), max_examples=50)
hypothesis.settings.load_profile("offspan")


@pytest.fixture(scope="module", autouse=True)
def _drop_compiled_programs():
    """After each file: every compiled program holds memory maps, of which a process may have some 65,000."""
    yield
    jax.clear_caches()


SLOW, LONG = (
    set((Path(__file__).parent / "tests" / name).read_text().split()) for name in ("slow.txt", "long.txt")
)  # files, tests, and single cases of tests
ABOUT_BITS = ("_bit", "_chunks", "_deterministic")  # in a name


def pytest_collection_modifyitems(items):
    for item in items:
        name = getattr(item, "originalname", None) or item.name
        if {name, item.name} & LONG:
            item.add_marker("long")
        if {name, item.name, item.path.name} & (SLOW | LONG):
            item.add_marker("slow")
        if any(word in name for word in ABOUT_BITS):
            item.add_marker("as_shipped")
        if name == "test_statements_hold_in_other_settings":  # which `make harden` runs
            item.add_marker("sweep")
