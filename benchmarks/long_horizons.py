"""Gymnasium's pendulum in jax, H = 200, trained from ±0.3 rad: which ways of training solve it, how far they reach, and what they cost.

Ten seeds a row. Solved: J(S) < 0.05, the mean cost of a time step. Reach: the share of a grid of starts (all angles, speeds up to 4 rad/s)
that ends within 0.2 rad of upright, of the seeds that solved it. Time: of an update of one of ten runs at once, without compilation.
`--quick` makes a tenth of the iterations.
"""

import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import offspan

SEEDS, H = 10, 200


def angle(theta):
    return jnp.arctan2(jnp.sin(theta), jnp.cos(theta))


def step(x, u):
    theta, speed = x
    speed = jnp.clip(speed + 0.05 * (15 * jnp.sin(theta) + 3 * u[0]), -8, 8)
    return jnp.stack([theta + 0.05 * speed, speed])


def stage_cost(x, u):
    return angle(x[0]) ** 2 + 0.1 * x[1] ** 2 + 0.001 * u[0] ** 2


problem = offspan.FunctionProblem(
    step, stage_cost, state_dim=2, control_dim=1, horizon=H, cost_scale=1 / (H + 1), control_bounds=(-2.0, 2.0)
)
seen = jnp.array([[0.3, 0.0], [-0.3, 0.0]])
starts = [offspan.Bounded(offspan.MLP.init(jax.random.key(seed), 2, 1), -2.0, 2.0) for seed in range(SEEDS)]
cut = lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))  # noqa: E731
WAYS: dict[str, dict[str, Any]] = {
    "exact, Adam 1e-3": {"optimizer": optax.adam(1e-3), "iterations": 3000},
    "exact, Adam 1e-4": {"optimizer": optax.adam(1e-4), "iterations": 3000},
    "exact, Adam 1e-3, cut at 1": {"optimizer": cut(1e-3), "iterations": 3000},
    "horizons 10, 20, 50, 100, 200": {"optimizer": optax.adam(1e-3), "iterations": 3000, "horizons": (10, 20, 50, 100, H)},
    "two points, radius 0.1": {"optimizer": optax.adam(1e-3), "iterations": 15_000, "gradient": offspan.TwoPoint(0.1, 8)},
    "two points, radius 0.1, Adam 1e-2": {"optimizer": optax.adam(1e-2), "iterations": 5000, "gradient": offspan.TwoPoint(0.1, 8)},
    "two points, radius 0.03, Adam 1e-2": {"optimizer": optax.adam(1e-2), "iterations": 5000, "gradient": offspan.TwoPoint(0.03, 8)},
    "REINFORCE, std 0.3": {"optimizer": optax.adam(1e-3), "iterations": 10_000, "gradient": offspan.Reinforce(0.3, 16)},
}


def reach(controller) -> float:
    axes = {0: jnp.linspace(-np.pi, np.pi, 41), 1: jnp.linspace(-4, 4, 17)}
    found = offspan.extrapolation_map(problem, controller, axes, success=lambda x: jnp.abs(angle(x[0])) < 0.2)
    return float(found.values.mean())


def main() -> None:
    share = 0.1 if "--quick" in sys.argv else 1.0
    print(f"{'way':>36} {'solved':>8} {'median J(S)':>12} {'reach of the solved':>20} {'ms an update':>13} {'rollouts':>10} {'stuck':>6}")
    for name, full in WAYS.items():
        way: dict[str, Any] = full | {"iterations": int(share * full["iterations"])}
        trained = partial(offspan.train_batch, problem, starts, seen, key=jax.random.key(0), record_every=10)
        short: dict[str, Any] = way | {"iterations": 10 * len(way.get("horizons", [H]))}
        trained(**short)  # compiles
        started = time.perf_counter()
        batch = trained(**way)
        seconds = time.perf_counter() - started
        J = np.array([float(offspan.cost(problem, controller, seen)) for controller in batch.controllers])
        solved = (J < 0.05) & (batch.codes != offspan.Status.diverged)
        reaches = [reach(controller) for controller, one in zip(batch.controllers, solved, strict=True) if one]
        said = f"{min(reaches):.0%} to {max(reaches):.0%}" if reaches else "–"
        rollouts = getattr(way.get("gradient"), "directions", 0) * 4 or getattr(way.get("gradient"), "rollouts", 1) * 2
        failed = [r for r in range(SEEDS) if not solved[r]]
        stuck = sum(offspan.diagnose(problem, batch.run(r), seen).what != "nothing" for r in failed)
        each = 1e3 * seconds / np.sum(batch.iterations)
        told = f"{stuck}/{len(failed)}"
        print(f"{name:>36} {solved.sum():>5}/{SEEDS} {np.median(J):>12.4f} {said:>20} {each:>13.2f} {rollouts:>10} {told:>6}", flush=True)


if __name__ == "__main__":
    main()
