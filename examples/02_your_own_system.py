"""A neural network steers a cart on a slope that you wrote down yourself; trained from one side, tried from both."""

import jax
import jax.numpy as jnp
import optax

import offspan


def step(x, u):
    position, velocity = x
    slope = jnp.sin(3 * position)
    return jnp.array([position + 0.05 * velocity, velocity + 0.05 * (u[0] - 2 * slope)])


def stage_cost(x, u):
    return x @ x


problem = offspan.FunctionProblem(step, stage_cost, state_dim=2, control_dim=1, horizon=60, cost_scale=1 / 60)
net = offspan.MLP.init(jax.random.key(0), in_dim=2, out_dim=1, width=32)
controller = offspan.Bounded(net, low=-5.0, high=5.0)

seen = offspan.grid([0.5, 1.0], [0.0])
run = offspan.train(problem, controller, seen, optimizer=optax.adam(2e-3), iterations=1_500, stop=offspan.NoImprovement())
after = float(offspan.cost(problem, run.controller, seen))
print(f"{run.status} after {run.iterations} iterations: J over seen states {run.cost[0]:.3f} -> {after:.3f}")
for start in offspan.grid([-1.0, -0.5, 0.25, 0.75, 1.5], [0.0]):
    before, after = (float(offspan.cost(problem, c, start[None, :])) for c in (controller, run.controller))
    print(f"from unseen position {start[0]:5.2f}: {before:.3f} -> {after:.3f}")
