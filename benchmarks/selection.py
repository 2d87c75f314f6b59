"""What choosing initial states costs: the time and the rollouts of each method, against training on what was chosen, in one run.

    python benchmarks/selection.py [--quick]

Two of eight basis states for a random LQR with D = H = 8, and two of thirteen angles for a pendulum. Each method is called twice, and the
second call is timed: compilation is left out where it is reused. Pilots compile in every call, as their batches have sizes of their own.
"""

import os
import sys
import time
import warnings

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

import offspan  # noqa: E402

ITERATIONS = 2_000 if "--quick" in sys.argv else 10_000
KEY = jax.random.key(0)
WITHOUT_TRAINING = (
    "random",
    "farthest",
    "gramian-trace",
    "gramian-logdet",
    "alignment",
    "tangent",
    "coverage",
    "covariance",
    "colearnability",
)


def seconds(call) -> float:
    """The second of two calls."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def table(title: str, problem, candidates, controller, optimizer, methods, iterations: int, training: float) -> None:
    print(f"{title}; one training of {iterations:,} iterations: {training:.2f} s")
    print(f"{'method':>16}{'rollouts':>12}{'seconds':>10}{'trainings':>11}")
    for method in methods:
        found = []
        options = {} if method in WITHOUT_TRAINING else {"optimizer": optimizer, "iterations": iterations}

        def choose(method=method, options=options, found=found):
            found.append(offspan.select(problem, candidates, 2, method=method, key=KEY, controllers=controller, **options))

        took = seconds(choose)
        print(f"{method:>16}{found[-1].rollouts:>12,}{took:>10.3f}{took / training:>11.2f}", flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    problem, candidates = offspan.gaussian(jax.random.key(3), 8, horizon=8), offspan.basis(8)
    training = seconds(lambda: offspan.train_lqr(problem, candidates[:2], learning_rate=1e-4, iterations=ITERATIONS))
    methods = (*WITHOUT_TRAINING, "flow", "pilot", "adaptive", "exhaustive")
    table("LQR, D = H = 8, 2 of 8", problem, candidates, offspan.Linear(jnp.zeros((8, 8))), optax.sgd(1e-4), methods, ITERATIONS, training)

    pendulum, angles = offspan.Pendulum(), offspan.grid(jnp.linspace(0.0, 2 * jnp.pi, 13), [0.0])
    network, sgd, iterations = offspan.MLP.init(KEY, in_dim=2, out_dim=1), optax.sgd(1e-6), ITERATIONS // 5
    training = seconds(lambda: offspan.train(pendulum, network, angles[:2], optimizer=sgd, iterations=iterations))
    print()
    table("Pendulum, 2 of 13", pendulum, angles, network, sgd, (*WITHOUT_TRAINING, "pilot", "adaptive"), iterations, training)


if __name__ == "__main__":
    main()
