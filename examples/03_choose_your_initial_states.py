"""Two experiments are all that you can afford on your own system. From which initial states should they start?"""

import jax
import jax.numpy as jnp
import optax

import offspan


def step(x, u):
    position, velocity = x
    return jnp.array([position + 0.1 * velocity, velocity + 0.1 * (u[0] - 4 * jnp.sin(3 * position))])


def stage_cost(x, u):
    return x @ x


problem = offspan.FunctionProblem(step, stage_cost, state_dim=2, control_dim=1, horizon=30, cost_scale=1 / 30)
candidates = offspan.grid(jnp.linspace(-2.0, 2.0, 9), [0.0])  # where an experiment could start: at rest, at nine places
start = offspan.Bounded(offspan.MLP.init(jax.random.key(0), in_dim=2, out_dim=1, width=16), low=-8.0, high=8.0)
training = {"optimizer": optax.adam(3e-3), "iterations": 300}

for method in ("random", "farthest", "pilot"):
    options = training if method == "pilot" else {}
    chosen = offspan.select(problem, candidates, 2, method=method, key=jax.random.key(1), controllers=start, sets=4, **options)
    run = offspan.train(problem, start, chosen.states, **training)
    J = float(offspan.cost(problem, run.controller, candidates))
    print(f"{method:8} from {chosen.states[:, 0].tolist()}: J over all candidates {J:.2f}, after {chosen.rollouts} rollouts to choose")

effect = offspan.effect_of_adding(problem, chosen.states, candidates[4], unseen=candidates, controllers=start, **training)
print(f"one more start at 0: predicted {effect.predicted:+.3f} (a difference of cosines), measured {effect.measured:+.3f} in J")

reach = offspan.extrapolation_map(problem, run.controller, {0: jnp.linspace(-4, 4, 161)}, success=lambda x: jnp.linalg.norm(x) < 0.5)
print(f"from rest, it ends near 0 for {reach.values.mean():.0%} of the places between -4 and 4")
