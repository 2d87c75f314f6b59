"""Train, audit, add the suggested states, train again: on Gymnasium's Pendulum-v1, without derivatives.

    pip install 'offspan[gymnasium]'
    python closed_loop.py --seeds 10 --output closed-loop

A small network learns to balance from two states near upright, by two-point gradients. Its audit covers the states that the environment
itself resets to, and suggests two more. Training continues with them and, for comparison, with two random states of the same region. Each
finished seed is a line of results.csv, and the same command runs only those that are missing.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import platform
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from matplotlib.figure import Figure

import offspan
from offspan.report.drawing import GREEN, OLIVE, heading, readable, styled
from offspan.systems.gymnasium import from_gymnasium

SEEN = jnp.array([[0.3, 0.0], [-0.3, 0.0]])  # angle from upright [rad], angular velocity [rad/s]
REGION = {0: (-np.pi, np.pi), 1: (-1.0, 1.0)}  # from which Pendulum-v1 draws its own initial states
HORIZON, STAGES = 200, (10, 20, 40, 60, 200)  # its time limit; training begins with short horizons


def observe(x):
    return jnp.stack([jnp.cos(x[0]), jnp.sin(x[0]), x[1] / 4])


def is_upright(x):
    return jnp.cos(x[0]) > jnp.cos(0.2)


def one_seed(seed: int, iterations: int, states: int, points: int) -> dict[str, float]:
    """Shares of the region that end upright: after the first training, with the suggested states, with random ones."""
    pendulum = from_gymnasium("Pendulum-v1", horizon=HORIZON)
    key_network, key_first, key_audit, key_again, key_random, key_states = jax.random.split(jax.random.key(seed), 6)
    network = offspan.MLP.init(key_network, 3, 1, width=8, depth=2, activation="tanh")
    controller = offspan.Observed(offspan.Bounded(network, -2.0, 2.0), observe)
    training = {
        "optimizer": optax.adam(optax.cosine_decay_schedule(0.1, iterations)),
        "iterations": iterations,
        "horizons": STAGES,
        "gradient": offspan.TwoPoint(radius=0.3, directions=8),
    }
    audited = {"success": is_upright, "states": states, "points": points, "key": key_audit}
    started = time.perf_counter()

    first = offspan.train(pendulum, controller, SEEN, key=key_first, **training)
    again = {**training, "key": key_again}
    found = offspan.audit(pendulum, first.controller, SEEN, REGION, retrain=again, **audited)
    low, high = np.array(list(REGION.values())).T
    random = jax.random.uniform(key_states, found.suggested.states.shape, minval=low, maxval=high)
    other = offspan.train(pendulum, first.controller, jnp.concatenate([SEEN, random]), key=key_random, **training)
    beside = offspan.audit(pendulum, other.controller, SEEN, REGION, **audited)
    assert found.retrained is not None  # as most of the region fails after the first training
    return {
        "seed": seed,
        "training_cost": float(first.cost[-1]),
        "before": found.outcome.share,
        "expected_gain": found.suggested.gain,
        "suggested": found.retrained.share,
        "random": beside.outcome.share,
        "seconds": round(time.perf_counter() - started, 1),
    }


@styled
def figure(results: pd.DataFrame) -> Figure:
    drawn = Figure(figsize=(6.6, 3.8))
    axes = drawn.subplots()
    for column, colour, name in (("suggested", GREEN, "+ 2 suggested states"), ("random", OLIVE, "+ 2 random states")):
        for _, row in results.iterrows():
            axes.plot([0, 1], 100 * np.asarray(row[["before", column]], float), color=colour, alpha=0.35, linewidth=1)
        median = 100 * results[column].median()
        axes.plot(1, median, "o", color=colour, markersize=8)
        axes.annotate(
            f"{name}: {median:.0f} %", (1, median), (10, 0), textcoords="offset points", color=readable(colour), va="center", weight="bold"
        )
    axes.set(xlim=(-0.1, 1.9), ylim=(0, 102), xticks=[0, 1], xticklabels=["trained from 2 states", "trained further, from 4"])
    axes.set_ylabel("region that ends upright [%], better ↑")
    further = float(np.median(results["suggested"])) > float(np.median(results["random"]))
    finding = (
        "States suggested by the audit reach further than random ones" if further else "States suggested by the audit, and random ones"
    )
    heading(drawn, finding, f"Pendulum-v1, {HORIZON} steps; {len(results)} seeds, their median as a dot")
    return drawn


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=600)
    parser.add_argument("--states", type=int, default=1_000, help="drawn from the region by each audit")
    parser.add_argument("--points", type=int, default=21, help="of each audit's maps, a coordinate")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with a seed at a time")
    parser.add_argument("--output", type=Path, default=Path("closed-loop"))
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    target = asked.output / "results.csv"
    versions = {name: importlib.metadata.version(name) for name in ("jax", "equinox", "optax", "numpy", "gymnasium")}
    machine = {"python": platform.python_version(), "processor": platform.machine(), "platform": jax.default_backend()}
    settings = {name: value for name, value in vars(asked).items() if name not in ("output", "workers", "seeds")}
    origin = {"offspan": offspan.__version__, "packages": versions, **machine, "settings": settings}
    told = asked.output / "provenance.json"
    if target.exists() and json.loads(told.read_text())["settings"] != settings:
        raise SystemExit(f"{target} was made with other settings; name another folder with --output.")
    told.write_text(json.dumps(origin, indent=2) + "\n")
    results = pd.read_csv(target) if target.exists() else pd.DataFrame({"seed": np.array([], int)})
    missing = [seed for seed in range(asked.seeds) if seed not in set(results.seed)]
    with ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(one_seed, seed, asked.iterations, asked.states, asked.points) for seed in missing]):
            row = done.result()
            results = pd.concat([results, pd.DataFrame([row])]).sort_values("seed")
            results.to_csv(target, index=False)
            print(", ".join(f"{name} {value:.3g}" for name, value in row.items()), flush=True)
    figure(results).savefig(asked.output / "success.png", dpi=200)
