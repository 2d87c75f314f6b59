"""The mathematics of the lab, in a real browser, against the library's."""

import base64
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from playwright.sync_api import Page

import offspan
from offspan.controllers import MLP
from offspan.errors import OffspanError
from offspan.exploration import krylov_rank
from offspan.lab.build import PAGE
from offspan.lab.data import NETWORKS, unpacked
from offspan.selection.criteria import gramian_logdet
from offspan.selection.evaluations import Setting
from offspan.selection.pilots import flow_costs
from offspan.theory.closed_forms import shift_alpha_any_horizon, shift_learning_rate, shift_ratios
from tests.chromium import chromium, needs_browser

pytestmark = needs_browser


@pytest.fixture(scope="module")
def mathematics():
    """Calls expressions of `m`, the module, and `given`, what is passed."""
    source = base64.b64encode((PAGE / "mathematics.js").read_bytes()).decode()
    with chromium() as browser:
        page: Page = browser.new_page()
        page.evaluate(f"async () => {{ window.m = await import('data:text/javascript;base64,{source}') }}")
        yield lambda expression, **given: page.evaluate(f"given => ({expression})", given)


def matrices(problem: offspan.LQR, **more: Any) -> dict[str, Any]:
    return {name: np.asarray(getattr(problem, name)).tolist() for name in "ABQR"} | {"horizon": problem.horizon, **more}


def random_problem(seed: int, n: int, m: int, *, R: float = 0.0, horizon: int = 5) -> offspan.LQR:
    """With dense A, B and Q."""
    rng = np.random.default_rng(seed)
    A, B, Z = (rng.normal(size=shape) / n**0.5 for shape in ((n, n), (n, m), (n, n)))
    Y = rng.normal(size=(m, m)) / m**0.5
    return offspan.LQR(A, B + np.eye(n, m), Z @ Z.T + np.eye(n), R * (Y @ Y.T + np.eye(m)), horizon=horizon)


SETTINGS = {
    "rotation": (offspan.LQR([[0.5, -(0.75**0.5)], [0.75**0.5, 0.5]], horizon=8), 1, {}),
    "shift": (offspan.shift(5, horizon=5), 2, {}),
    "gaussian": (offspan.gaussian(jax.random.key(0), 8, horizon=8), 2, {}),
    "dense 2": (random_problem(0, 2, 2, horizon=8), 1, {}),
    "dense 5, R": (random_problem(1, 5, 5, R=0.3), 2, {}),
    "dense 8": (random_problem(2, 8, 8), 3, {}),
    "8 states, 3 controls, R": (random_problem(3, 8, 3, R=0.2), 2, {}),
    "5 states, 2 controls": (random_problem(4, 5, 2), 1, {}),
    "2 states, 1 control, R": (random_problem(5, 2, 1, R=1.0), 1, {}),
    "cut": (random_problem(6, 5, 5, R=0.1), 2, {"clip": 1.5}),
    "noise, R, not square": (random_problem(7, 5, 3, R=0.2), 2, {"noise": 0.4}),
    "noise and cut": (random_problem(8, 2, 2), 1, {"noise": 0.3, "clip": 0.5}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_training_is_that_of_train_lqr(mathematics, name):
    """K and every cost of 1,000 iterations, to 1e-10."""
    problem, count, options = SETTINGS[name]
    seen, noise = np.random.default_rng(9).normal(size=(count, problem.state_dim)), options.get("noise", 0.0)
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    noisy = offspan.Noisy(problem, control=noise) if noise else problem
    ours = offspan.train_lqr(noisy, seen, learning_rate=2e-3, iterations=1000, clip=options.get("clip"))
    how = {"rate": 2e-3, "iterations": 1000, "cut": options.get("clip", 0)}
    found = mathematics(
        "m.train(given.problem, given.seen, given.how)", problem=matrices(problem, noise=noise), seen=seen.tolist(), how=how
    )
    assert not found["diverged"]
    assert ours.cost[0] - ours.cost[-1] > 0.1, "it was training"
    np.testing.assert_allclose(found["K"], ours.K, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found["costs"], ours.cost, rtol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_the_measures_are_the_librarys(mathematics, seed):
    n = (2, 5, 8, 3)[seed]
    problem, seen = random_problem(seed, n, n), np.random.default_rng(seed).normal(size=(max(1, n // 3), n))
    K = 0.3 * np.random.default_rng(seed + 1).normal(size=(n, n))
    found = mathematics("m.measures(given.problem, given.K, given.seen)", problem=matrices(problem), K=K.tolist(), seen=seen.tolist())
    names = ("optimality", offspan.optimality_measure), ("cost", offspan.cost_measure)
    for name, of in (*names, ("normalizedOptimality", offspan.normalized_optimality), ("normalizedCost", offspan.normalized_cost)):
        assert found[name] == pytest.approx(float(of(problem, K, seen)), rel=1e-12)
    ends = mathematics("m.baselines(given.problem, given.seen)", problem=matrices(problem), seen=seen.tolist())
    np.testing.assert_allclose(ends["extrapolating"], offspan.extrapolating_controller(problem), rtol=0, atol=1e-11)
    np.testing.assert_allclose(ends["nonextrapolating"], offspan.nonextrapolating_controller(problem, seen), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("problem", "seen"),
    [
        (random_problem(0, 3, 2), [[1.0, 0.0, 0.0]]),
        (random_problem(0, 3, 3, R=0.1), [[1.0, 0.0, 0.0]]),
        (offspan.LQR(np.eye(2), [[1.0, 2.0], [2.0, 4.0]], horizon=3), [[1.0, 0.0]]),
        (offspan.shift(2, horizon=3), [[1.0, 0.0], [1.0, 1.0]]),
        (offspan.LQR([[1.0, 0.0], [0.0, 0.0]], horizon=3), [[1.0, 0.0]]),
    ],
)
def test_where_the_library_refuses_a_measure_the_lab_says_why(mathematics, problem, seen):
    K = np.zeros((problem.control_dim, problem.state_dim))
    with pytest.raises(OffspanError):
        offspan.normalized_optimality(problem, K, np.array(seen))
    found = mathematics("m.measures(given.problem, given.K, given.seen)", problem=matrices(problem), K=K.tolist(), seen=seen)
    assert "normalizedOptimality" not in found
    assert found["why"].endswith(".")


def test_a_run_diverges_as_it_does_in_python(mathematics):
    """It keeps its last finite controller; at most an iteration apart, as the library's check reads the next cost."""
    problem, seen = offspan.shift(3, horizon=6), [[1.0, 0.0, 0.0]]
    ours = offspan.train_lqr(problem, np.array(seen), learning_rate=0.9, iterations=50)
    how = {"rate": 0.9, "iterations": 50}
    found = mathematics("m.train(given.problem, given.seen, given.how)", problem=matrices(problem), seen=seen, how=how)
    assert found["diverged"]
    assert ours.status == "diverged"
    assert abs(len(found["costs"]) - ours.iterations) <= 1
    assert np.isfinite(found["K"]).all()


@pytest.mark.parametrize("seed", range(3))
def test_what_the_choice_of_states_rests_on(mathematics, seed):
    """log det, flow, Gramian and Krylov rank."""
    n, k = (4, 6, 8)[seed], 2
    problem = offspan.gaussian(jax.random.key(1), n, horizon=6) if seed == 1 else random_problem(seed, n, n - 3 * (seed // 2))
    candidates = np.eye(n)
    sets = np.array([(i, j) for i in range(n) for j in range(i + 1, n)])[:12]
    zero = offspan.Linear(jnp.zeros((problem.control_dim, n)))
    logdet = gramian_logdet(Setting(problem, jnp.asarray(candidates), [zero], jnp.ones(n))).value(sets)
    flow, _ = flow_costs(problem, jnp.asarray(candidates), sets, jnp.zeros((problem.control_dim, n)), 3e-3, 500)
    given = {"problem": matrices(problem), "candidates": candidates.tolist(), "sets": sets.tolist()}
    np.testing.assert_allclose(mathematics("m.logDeterminants(given.problem, given.candidates, given.sets)", **given), logdet, rtol=1e-11)
    np.testing.assert_allclose(mathematics("m.flowCosts(given.problem, given.candidates, given.sets, 3e-3, 500)", **given), flow, rtol=1e-9)
    gramian = mathematics("m.gramian(given.problem, given.candidates[0])", **given)
    np.testing.assert_allclose(gramian, offspan.gramian(problem, candidates[:1]), rtol=1e-11, atol=1e-11)
    assert mathematics("m.krylovRank(given.problem.A, given.candidates.slice(0, 2))", **given) == krylov_rank(problem.A, candidates[:k])


@pytest.mark.parametrize(("A", "rank"), [(np.eye(4), 1), (np.diag([1.0, 2, 3], -1), 4), (np.diag([1.0, 1], 2), 1), (np.zeros((3, 3)), 1)])
def test_the_krylov_rank_of_special_matrices(mathematics, A, rank):
    x = np.eye(len(A))[:1]
    assert mathematics("m.krylovRank(given.A, given.x)", A=A.tolist(), x=x.tolist()) == rank == krylov_rank(A, x)


@pytest.mark.parametrize(("dim", "horizon"), [(5, 5), (5, 8), (2, 8), (3, 1)])
def test_the_propositions_learning_rate_and_what_its_step_leaves(mathematics, dim, horizon):
    found = mathematics("m.shiftProposition(given.dim, given.horizon)", dim=dim, horizon=horizon)
    alpha = shift_alpha_any_horizon(dim, horizon)
    assert found["rate"] == pytest.approx(shift_learning_rate(dim, horizon), rel=1e-14)
    assert found["optimality"] == pytest.approx(shift_ratios(alpha, horizon)[0], rel=1e-13)


@pytest.mark.parametrize("cut", [0, 1.5])
def test_visits_and_costs_of_starts(mathematics, cut):
    """Training adds up η min(1, cut/‖∇J‖) times the Gramian of each iteration; J(K; x) is the quadratic form of the cost matrix."""
    problem, seen = random_problem(3, 4, 4), np.eye(4)[:2]
    given = {"problem": matrices(problem), "seen": seen.tolist(), "cut": cut}
    steps = "const t = new m.Training(given.problem, given.seen, {rate: 0.01, cut: given.cut}); t.step(); t.step()"
    visits, K = mathematics(f"(() => {{ {steps}; return [m.rowsOf(t.visits, 4, 4), t.K] }})()", **given)
    first = offspan.train_lqr(problem, seen, learning_rate=0.01, iterations=1, clip=cut or None).K
    expected = np.zeros((4, 4))
    for controller in (np.zeros((4, 4)), first):
        length = float(jnp.linalg.norm(jax.grad(lambda K: offspan.cost(problem, offspan.Linear(K), seen))(jnp.asarray(controller))))
        assert length > 1.5
        expected += 0.01 * (cut / length if cut else 1) * np.asarray(offspan.gramian(problem, seen, controller))
    np.testing.assert_allclose(visits, expected, rtol=1e-11, atol=1e-12)
    P = np.array(mathematics("m.costMatrix(given.problem, given.K)", problem=given["problem"], K=K))
    x = np.array([0.3, -1.0, 0.5, 2.0])
    assert x @ P @ x == pytest.approx(float(offspan.cost(problem, offspan.Linear(K), x[None])), rel=1e-12)


NETS = json.loads(NETWORKS.read_text())["networks"]


@pytest.mark.parametrize("place", range(len(NETS)), ids=[f"{one['objective']}-{one['seed']}-{one['iteration']}" for one in NETS])
def test_the_pendulum_swings_as_in_python(mathematics, place):
    """The same float32 network and problem: states to 1e-5, relative where they are large."""
    starts = [[0.0, 0.0], [0.785, 0.0], [2.641, 0.0], [4.71, -1.5], [5.497, 2.0]]
    found = mathematics("given.starts.map(x => m.swing(m.unpack(given.layers), x))", layers=NETS[place]["layers"], starts=starts)
    with jax.enable_x64(False):
        problem, network = offspan.Pendulum(), MLP(unpacked(NETS[place]["layers"]))
        for x0, one in zip(starts, found, strict=True):
            ours = offspan.rollout(problem, network, jnp.asarray(x0, jnp.float32))
            assert ours.states.dtype == jnp.float32
            np.testing.assert_allclose(one["states"], ours.states, rtol=1e-5, atol=1e-5)
            assert one["cost"] == pytest.approx(float(ours.costs.sum()) / 100, rel=1e-4)


def test_half_precision_is_read_as_numpy_reads_it(mathematics):
    values = np.array([0.0, -0.0, 1.0, -2.5, 6e-8, 5.9e-5, 65504.0, 0.1], np.float16)
    found = mathematics("[...m.halves(given.text)]", text=base64.b64encode(values.astype("<f2").tobytes()).decode())
    assert found == values.astype(float).tolist()
