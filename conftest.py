"""Every test runs in float64, with shapes checked and with rank promotion an error."""

import hypothesis
import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# A first call compiles, so a deadline would measure the compiler; the same examples each time, so that a failure can be repeated.
hypothesis.settings.register_profile("offspan", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile("offspan")
