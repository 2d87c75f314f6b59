"""What a gradient costs and what it buys: exact, two points and REINFORCE on the paper's pendulum, in one run.

Five seeds at once, Adam at 1e-3 with the gradient cut at norm 1. For each estimator: milliseconds an update, and seconds and rollouts until
J(S) of the median seed is a quarter of what it was, all without compilation. `--quick` makes a tenth of the updates.
"""

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import offspan

SEEDS = 5
ESTIMATORS: dict[str, tuple[Any, int]] = {  # with the updates that it may make
    "exact": (offspan.Exact(), 1_000),
    "two points, 16 directions": (offspan.TwoPoint(0.03, 16), 500),
    "two points, 64 directions": (offspan.TwoPoint(0.03, 64), 150),
    "REINFORCE, 32 rollouts": (offspan.Reinforce(0.3, 32), 500),
}


def main() -> None:
    share = 0.1 if "--quick" in sys.argv else 1.0
    problem, seen = offspan.Pendulum(), jnp.array([[2.641, 0.0], [3.641, 0.0]])
    starts = [offspan.MLP.init(jax.random.key(seed), 2, 1) for seed in range(SEEDS)]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    key = jax.random.key(0)
    print(f"{'gradient':>28} {'ms an update':>13} {'ratio':>7} {'updates':>9} {'seconds':>9} {'ratio':>7} {'rollouts':>10} {'J(S)':>10}")
    first: tuple[float, float] | None = None
    for name, (estimator, most) in ESTIMATORS.items():
        how: dict[str, Any] = {"optimizer": optimizer, "gradient": estimator, "key": key, "record_every": 10}
        offspan.train_batch(problem, starts, seen, iterations=20, **how)  # compiles
        started = time.perf_counter()
        batch = offspan.train_batch(problem, starts, seen, iterations=int(share * most), **how)
        each = (time.perf_counter() - started) / batch.done
        below = np.median(batch.cost / batch.cost[:, :1], axis=0) <= 0.25
        updates = int(batch.recorded[np.argmax(below)]) if below.any() else None
        seconds = each * updates if updates is not None else float("nan")
        first = first or (each, seconds)
        rollouts = f"{updates * estimator(key, problem, starts[0], seen).rollouts:,}" if updates is not None else "–"
        print(
            f"{name:>28} {1e3 * each:>13.2f} {each / first[0]:>7.1f} {updates if updates is not None else '–':>9} {seconds:>9.2f} "
            f"{seconds / first[1]:>7.1f} {rollouts:>10} {np.median(batch.cost[:, -1]):>10.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
