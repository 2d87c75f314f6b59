"""How fast networks train through rollouts: against the machine's matrix products, and against differentiating the time loop, in one run.

    python benchmarks/neural.py [--quick]

Floating-point operations are counted as 6 · (weights of the network) · |S| · (H + 1) for one iteration of one seed: forward, and backward
by states and by weights.
"""

import itertools
import os
import sys
import time

import jax

jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import offspan  # noqa: E402
from offspan.experiments.network import NetworkSpec, make  # noqa: E402
from offspan.experiments.registry import load_preset  # noqa: E402

REPEATS = 1 if "--quick" in sys.argv else 3


def product_rate() -> float:
    """GFLOP/s of a large float32 matrix product on all cores, by NumPy."""
    M = np.random.default_rng(0).normal(size=(3000, 3000)).astype(np.float32)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        _ = M @ M
        times.append(time.perf_counter() - start)
    return 2 * 3000**3 / min(times) / 1e9


def loop_cost(problem, controller, x0s):
    """J(π; S) as one would write it: differentiating it differentiates the time loop, and sums the weights' gradient in each step."""

    def step(x, _):
        u = controller(x)
        return problem.step(x, u), problem.stage_cost(x, u)

    return problem.cost_scale * jax.vmap(lambda x0: jax.lax.scan(step, x0, length=problem.horizon + 1)[1].sum())(x0s).mean()


def plain_loss(problem, controller, x0s):
    J = loop_cost(problem, controller, x0s)
    return J, J


def seconds_per_seed_iteration(problem, controllers, x0s, optimizer, loss=None) -> float:
    """Over some thousand iterations (one thousand, for many seeds), after the first ones and compilation."""
    marks: list[tuple[int, float]] = []
    offspan.train_batch(
        problem,
        controllers,
        x0s,
        optimizer=optimizer,
        iterations=1000 * (1 + (REPEATS if len(controllers) < 10 else 1)),
        loss=loss,
        on_chunk=lambda batch: marks.append((batch.done, time.perf_counter())),
    )
    later = [mark for mark in marks if mark[0] >= 1000]
    return min((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(later)) / len(controllers)


def main() -> None:
    peak = product_rate()
    print(f"{jax.device_count()} device(s), {jax.devices()[0].device_kind}; large float32 matrix product (NumPy): {peak:.0f} GFLOP/s\n")
    headings = "preset", "seeds", "ms/seed-iteration", "GFLOP/s", "of peak", "× faster than the loop"
    print("".join(f"{heading:>24}" for heading in headings))
    for name in ("pendulum", "quadcopter-below"):
        spec = load_preset(name)
        assert isinstance(spec, NetworkSpec)
        problem, seen, _, _ = make(spec)
        weights = sum(leaf.size for leaf in jax.tree.leaves(spec.first_controller(problem, 0)) if leaf.ndim == 2)
        operations = 6 * weights * len(seen) * (problem.horizon + 1)
        for seeds in (1, 5, 6, 50):
            controllers = [spec.first_controller(problem, seed) for seed in range(seeds)]
            # So small a step that no seed diverges; the operations are the same.
            optimizer = optax.sgd(1e-9) if name == "pendulum" else optax.adam(1e-9)
            each = seconds_per_seed_iteration(problem, controllers, jnp.asarray(seen), optimizer)
            loop = seconds_per_seed_iteration(problem, controllers, jnp.asarray(seen), optimizer, plain_loss)
            rate = operations / each / 1e9
            cells = name, str(seeds), f"{1e3 * each:.3f}", f"{rate:.1f}", f"{rate / peak:.1%}", f"{loop / each:.2f}"
            print("".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
