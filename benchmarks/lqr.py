"""How fast the LQR batch engine is: against the machine's own matrix products, a plain NumPy loop and a plain program in jax, in one run.

    python benchmarks/lqr.py [--quick]

It runs on the GPU, if jax has one. Floating-point operations are counted as 6·D²·|S|·H for one iteration of one run: forward, backward
and the gradient's sum.
"""

import os
import sys
import time

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import offspan  # noqa: E402

RATE = 1e-12  # so small that no system of any size diverges; the operations are the same
ON_A_GPU = (  # D, H, |S|, runs of each |S|, iterations
    (5, 5, [4], 240, 5_000),
    (5, 5, [1, 2, 3, 4], 60, 5_000),
    (5, 5, [4], 10_000, 5_000),
    (8, 8, [4], 240, 5_000),
    (8, 8, [7], 240, 5_000),
    (8, 20, [4], 240, 5_000),
    (16, 16, [4], 240, 5_000),
    (24, 24, [4], 240, 3_000),
    (40, 40, [30], 48, 2_000),
    (40, 40, [1, 10, 20, 30], 12, 2_000),
    (40, 40, [30], 480, 1_000),
)
REPEATS = 2 if "--quick" in sys.argv else 5


def seconds(function) -> float:
    """The shortest of several calls, after one that compiles."""
    function()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def product_rate() -> float:
    """GFLOP/s of a large float64 matrix product on all cores, by NumPy."""
    M = np.random.default_rng(0).normal(size=(2000, 2000))
    return 2 * 2000**3 / seconds(lambda: M @ M) / 1e9


def numpy_loop(A: np.ndarray, x0s: np.ndarray, rate: float, horizon: int, iterations: int) -> np.ndarray:
    """The same training of one run, as one would write it in NumPy (B = Q = I, R = 0)."""
    K = np.zeros_like(A)
    for _ in range(iterations):
        M = A + K
        states = [x0s.T]
        for _ in range(horizon):
            states.append(M @ states[-1])
        costate = 2 * states[horizon]
        gradient = costate @ states[horizon - 1].T
        for h in range(horizon - 1, 0, -1):
            costate = 2 * states[h] + M.T @ costate
            gradient += costate @ states[h - 1].T
        K = K - rate / len(x0s) * gradient
    return K


def loop_seconds(dim: int, horizon: int, count: int) -> float:
    """One iteration of one run by the NumPy loop."""
    A = np.asarray(offspan.gaussian(jax.random.key(0), dim, horizon=horizon).A)
    return seconds(lambda: numpy_loop(A, np.eye(dim)[:count], RATE, horizon, 20)) / 20


def plain_seconds(dim: int, horizon: int, counts: list[int], runs_each: int) -> float:
    """One iteration of all runs as one would write it in jax: the gradient of a loop over time, for all runs by vmap."""
    problems, x0s, _ = batch(dim, horizon, counts, runs_each)
    A, sizes = jnp.stack([problem.A for problem in problems]), jnp.asarray([float(len(x)) for x in x0s])
    X0 = jnp.stack([jnp.pad(x, ((0, max(counts) - len(x)), (0, 0))) for x in x0s])

    def J(K, A, X, size):
        M, X = A + K, X.T
        total = jnp.sum(X**2)
        for _ in range(horizon):
            X = M @ X
            total += jnp.sum(X**2)
        return total / size

    def update(_, K):
        return K - RATE * jax.vmap(jax.grad(J))(K, A, X0, sizes)

    descend = jax.jit(lambda K, count: jax.lax.fori_loop(0, count, update, K))
    return seconds(lambda: descend(jnp.zeros_like(A), 100).block_until_ready()) / 100


def batch(dim: int, horizon: int, counts: list[int], runs_each: int):
    """`runs_each` Gaussian systems for each number of seen states, and the operations of one iteration of all of them."""
    problems = [offspan.gaussian(jax.random.key(seed), dim, horizon=horizon) for _ in counts for seed in range(runs_each)]
    x0s = [offspan.basis(dim, count) for count in counts for _ in range(runs_each)]
    return problems, x0s, 6 * dim**2 * horizon * sum(counts) * runs_each


def measure(dim: int, horizon: int, counts: list[int], runs_each: int, iterations: int) -> tuple[float, float, float]:
    """(seconds of one iteration of all runs, GFLOP/s, seconds to compile); records every 100 iterations, set-up not counted."""
    problems, x0s, operations = batch(dim, horizon, counts, runs_each)
    marks: list[tuple[int, float]] = []

    def train(count: int) -> float:
        """Seconds per iteration after the first thousand."""
        marks[:] = [(0, time.perf_counter())]
        offspan.train_lqr_batch(
            problems, x0s, learning_rate=RATE, iterations=count, on_chunk=lambda batch: marks.append((batch.done, time.perf_counter()))
        )
        (first, started), (last, ended) = next(mark for mark in marks if mark[0] >= min(count, 1000)), marks[-1]
        return (ended - started) / max(last - first, 1)

    train(1000)
    first_call = marks[-1][1] - marks[0][1]
    best = min(train(1000 + iterations) for _ in range(REPEATS))
    return best, operations / best / 1e9, first_call - 1000 * best


def beside_plain(sizes, peak: float) -> None:
    """A line for each (D, H, |S|, runs of each |S|, iterations): µs an iteration, and how many times as fast as the plain program."""
    for dim, horizon, counts, runs_each, iterations in sizes:
        each, rate, _ = measure(dim, horizon, counts, runs_each, iterations)
        plain = plain_seconds(dim, horizon, counts, runs_each)
        size = f"({dim}, {horizon}), |S| = {', '.join(map(str, counts))}, {len(counts) * runs_each} runs"
        print(f"{size:>42}: {1e6 * each:8.1f} µs   {rate / peak:6.1%} of the peak   {plain / each:5.2f} × as fast", flush=True)


def main() -> None:
    peak = product_rate()
    print(f"{jax.device_count()} device(s), {jax.devices()[0].device_kind}; large float64 matrix product: {peak:.0f} GFLOP/s\n")
    headings = "(D, H)", "runs", "µs/iteration", "iterations·runs/s", "GFLOP/s", "of peak", "× NumPy loop", "compile s"
    print("".join(f"{heading:>19}" for heading in headings))
    for dim, horizon, counts, runs_each, iterations in (
        (5, 5, [2], 1, 5_000),
        (5, 5, [1, 2, 3, 4], 60, 5_000),
        (5, 8, [1, 2, 3, 4], 60, 3_000),
        (40, 40, [1, 10, 20, 30], 12, 1_000),
    ):
        each, rate, compiling = measure(dim, horizon, counts, runs_each, iterations)
        loops = [loop_seconds(dim, horizon, count) for count in counts]
        ratio = sum(loops) * runs_each / each
        runs = len(counts) * runs_each
        cells = f"({dim}, {horizon})", runs, f"{1e6 * each:.1f}", f"{runs / each:,.0f}", f"{rate:.1f}", f"{rate / peak:.1%}", f"{ratio:.0f}"
        print("".join(f"{cell:>19}" for cell in (*cells, f"{compiling:.1f}")))
    print("\nsizes; beside a plain program in jax")
    if jax.devices()[0].platform == "cpu":
        beside_plain([(dim, dim, [4], 64, 2_000 if dim < 24 else 500) for dim in (5, 8, 12, 16, 24, 40)], peak)
    else:
        beside_plain(ON_A_GPU, peak)
    print("\ngrowth, from a base of (5, 5), |S| = 2, 64 runs; the ratio in brackets is that of the operations")
    base, _, _ = measure(5, 5, [2], 64, 3_000)
    for name, dim, horizon, runs in (
        ("4 × the runs", 5, 5, 256),
        ("16 × the runs", 5, 5, 1024),
        ("H = 10", 5, 10, 64),
        ("H = 20", 5, 20, 64),
        ("D = 8", 8, 5, 64),
        ("D = 16", 16, 5, 64),
    ):
        each, _, _ = measure(dim, horizon, [2], runs, 1_000)
        print(f"{name:>14}: {each / base:6.1f} × the time   ({dim**2 * horizon * runs / (25 * 5 * 64):.1f})")


if __name__ == "__main__":
    main()
