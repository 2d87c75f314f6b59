"""A map of 41 × 41 initial states over 200 steps for each kind of system, and what share of the time is the simulator's own.

The simulator's own time is that of the same number of its steps, made by a plain loop without offspan (a smaller number, scaled up). An
audit also draws 1,000 states and looks for states to add, about twice the steps of its map. `--quick` takes 11 × 11 states and 50 steps.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import offspan
from offspan.errors import extra

QUICK = "--quick" in sys.argv
POINTS, HORIZON = (11, 50) if QUICK else (41, 200)
STATES = POINTS**2
CARTPOLE = str(Path(__file__).parent.parent / "examples" / "cartpole.xml")
Plain = Callable[[], float]  # seconds for STATES × HORIZON steps of the simulator alone


def seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def numpy_pendulum() -> tuple[offspan.Problem, Plain]:
    def step(X, U):
        return X + 0.05 * np.stack([X[:, 1], np.clip(U[:, 0], -2, 2) + 15 * np.sin(X[:, 0])], axis=1)

    def stage_cost(X, U):
        return np.sum(X**2, axis=1)

    def plain() -> float:
        X, U = np.ones((STATES, 2)), np.zeros((STATES, 1))
        return seconds(lambda: [(step(X, U), stage_cost(X, U)) for _ in range(HORIZON + 1)])

    return offspan.BlackBox(step, stage_cost, state_dim=2, control_dim=1, horizon=HORIZON), plain


def gymnasium(name: str, **options: Any) -> tuple[offspan.Problem, Plain]:
    import gymnasium

    from offspan.systems.gymnasium import from_gymnasium

    def plain() -> float:
        env: Any = gymnasium.make(name).unwrapped
        env.reset(seed=0)
        action, steps = np.zeros(env.action_space.shape), 5_000
        return min(seconds(lambda: [env.step(action) for _ in range(steps)]) for _ in range(3)) * STATES * (HORIZON + 1) / steps

    return from_gymnasium(name, horizon=HORIZON, **options), plain


def mujoco() -> tuple[offspan.Problem, Plain]:
    from mujoco import rollout

    from offspan.systems.mujoco import from_mujoco

    engine = extra("mujoco")
    problem = from_mujoco(CARTPOLE, stage_cost=lambda X, U: np.sum(X**2, axis=1), horizon=HORIZON)

    def plain() -> float:
        model = engine.MjModel.from_xml_path(CARTPOLE)
        threads = [engine.MjData(model) for _ in range(2)]
        states = np.zeros((STATES, engine.mj_stateSize(model, engine.mjtState.mjSTATE_FULLPHYSICS)))
        with rollout.Rollout(nthread=2) as pool:  # all steps of a trajectory in one call, which a controller in between does not allow
            return seconds(lambda: pool.rollout(model, threads, states, np.zeros((STATES, HORIZON + 1, model.nu))))

    return problem, plain


def mjx() -> tuple[offspan.Problem, Plain]:
    from offspan.systems.mjx import from_mjx

    problem: Any = from_mjx(CARTPOLE, stage_cost=lambda x, u: jnp.sum(x**2), horizon=HORIZON)

    def plain() -> float:
        def one(x):
            return jax.lax.scan(lambda x, _: (problem.step(x, jnp.zeros(problem.control_dim)), None), x, length=HORIZON + 1)[0]

        many, X = jax.jit(jax.vmap(one)), jnp.zeros((STATES, problem.state_dim))
        many(X).block_until_ready()  # compiles
        return seconds(lambda: many(X).block_until_ready())

    return problem, plain


def control() -> tuple[offspan.Problem, Plain]:
    import control

    from offspan.systems.control import from_control

    A = [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 11.0, 0.0]]
    plant = control.ss(A, [[0.0], [1.0], [0.0], [-1.0]], np.eye(4), 0)
    problem = from_control(plant, Q=np.eye(4), R=[[0.1]], horizon=HORIZON, dt=0.05)
    sampled: Any = control.sample_system(plant, 0.05)
    respond: Any = control.forced_response
    times = 0.05 * np.arange(HORIZON + 1)

    def plain() -> float:
        one = seconds(lambda: [respond(sampled, times, np.zeros((1, HORIZON + 1)), np.zeros(4)) for _ in range(20)])
        return one * STATES / 20

    return problem, plain


SYSTEMS: dict[str, Callable[[], tuple[offspan.Problem, Plain]]] = {
    "jax (the paper's pendulum)": lambda: (offspan.Pendulum(horizon=HORIZON), lambda: float("nan")),
    "BlackBox (NumPy)": numpy_pendulum,
    "Gymnasium, Pendulum-v1": lambda: gymnasium("Pendulum-v1"),
    "the same, 2 processes": lambda: gymnasium("Pendulum-v1", processes=2),
    "Gymnasium, InvertedPendulum-v5": lambda: gymnasium("InvertedPendulum-v5"),
    "MuJoCo's C engine, cart-pole": mujoco,
    "MJX, the same cart-pole": mjx,
    "python-control, cart-pole (LQR)": control,
}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print(f"{STATES:,} initial states, {HORIZON} steps\n")
    print(f"{'system':>32} {'first map':>10} {'again':>8} {'simulator':>10} {'share':>6} {'audit':>8}   [s]")
    for name, make in SYSTEMS.items():
        problem, plain = make()
        controller = offspan.Linear(np.zeros((problem.control_dim, problem.state_dim)))
        axes = {0: np.linspace(-0.5, 0.5, POINTS), 1: np.linspace(-0.1, 0.1, POINTS)}
        first, again = (seconds(lambda: offspan.extrapolation_map(problem, controller, axes)) for _ in range(2))  # noqa: B023
        own = plain()
        region = {0: (-0.5, 0.5), 1: (-0.1, 0.1)}
        origin = np.zeros((1, problem.state_dim))
        of_audit = seconds(
            lambda: offspan.audit(problem, controller, origin, region, success=lambda x: jnp.abs(x[0]) < 0.3, points=POINTS)  # noqa: B023
        )
        share = "–" if np.isnan(own) else f"{min(own / again, 9.99):.0%}"
        print(f"{name:>32} {first:>10.2f} {again:>8.2f} {own:>10.2f} {share:>6} {of_audit:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
