"""Every test runs in float64, with shapes checked and with rank promotion an error."""

import importlib.metadata
import os

# Most of the tests' time is compilation, and most programs run once. Processes that a test starts inherit this, so that bits can be
# compared; `XLA_FLAGS= pytest` compiles as a user does.
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones do not know it, and an unknown flag ends the process
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

import hypothesis  # noqa: E402
import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)  # so that shares of a batch, and uneven ones, are tested wherever the tests run

# A first call compiles, so a deadline would measure the compiler; the same examples each time, so that a failure can be repeated.
hypothesis.settings.register_profile("offspan", deadline=None, derandomize=True, max_examples=10)
hypothesis.settings.load_profile("offspan")
