"""Every test runs in float64, with shapes checked and with rank promotion an error."""

import hypothesis
import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)  # so that shares of a batch, and uneven ones, are tested wherever the tests run

# A first call compiles, so a deadline would measure the compiler; the same examples each time, so that a failure can be repeated.
hypothesis.settings.register_profile("offspan", deadline=None, derandomize=True, max_examples=10)
hypothesis.settings.load_profile("offspan")
