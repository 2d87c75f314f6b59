"""A controller of one of Gymnasium's environments, trained without derivatives from one initial state, and tried from others."""

import jax
import numpy as np
import optax

import offspan
from offspan.systems.gymnasium import from_gymnasium

problem = from_gymnasium("CartPole-v1", horizon=100)  # the environment itself: what it ends, ends here
network = offspan.MLP.init(jax.random.key(0), problem.state_dim, problem.control_dim, width=8, depth=2)
upright = np.zeros((1, 4))
run = offspan.train(
    problem, network, upright, optimizer=optax.adam(0.05), iterations=30, gradient=offspan.TwoPoint(0.3, 8), key=jax.random.key(1)
)
print(f"it stood for {-run.cost[0]:.0f} steps before training, and for {-run.cost.min():.0f} of 101 at best")

tilted = offspan.extrapolation_map(problem, run.controller, {2: np.linspace(-0.2, 0.2, 9)})
for angle, cost in zip(tilted.axes[0], tilted.values, strict=True):
    print(f"from {problem.coordinates[2]} = {angle:+.2f}: {-cost:.0f} steps")
