"""Audits: shares by plain loops, states that are worth adding, a page that needs nothing else."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import offspan
from offspan.report import audit as audit_report

KEY = jax.random.key(3)
REGION = {0: (-2.0, 2.0), 1: (-1.0, 1.0)}
# The first coordinate is steered to zero, the second doubles: it fails where |x₁| 2⁵ > 1.
HALF = offspan.Linear([[-1.0, 0.0], [0.0, 1.0]])
PLANT = offspan.identity(2, horizon=5)
SEEN = jnp.array([[1.0, 0.0]])


def inside(x):
    return jnp.abs(x[1]) <= 1


def audited(**options: Any) -> offspan.Audit:
    return offspan.audit(PLANT, HALF, SEEN, REGION, **{"success": inside, "points": 9, "states": 400, "key": KEY, **options})


def test_shares_costs_and_distances_are_those_of_a_plain_loop():
    found = audited()
    X = found.states
    assert X.shape == (400, 2)
    assert np.all((X >= [-2, -1]) & (X <= [2, 1]))
    assert np.ptp(X[:, 0]) > 3.8
    np.testing.assert_array_equal(found.outcome.successes, np.abs(X[:, 1]) * 32 <= 1)
    np.testing.assert_allclose(found.outcome.costs, X[:, 0] ** 2 + X[:, 1] ** 2 * sum(4**h for h in range(6)), rtol=1e-12)
    # From (1, 0) training visits (1, 0) and (0, 0), as R = 0; widths are 4 and 2.
    visited = np.array([[1.0, 0.0], [0.0, 0.0]])
    expected = np.min(np.linalg.norm((X[:, None] - visited[None]) / [4, 2], axis=2), axis=1)
    np.testing.assert_allclose(found.distances, expected, atol=1e-12)
    near = expected <= 0.1
    assert found.near == pytest.approx((np.abs(X[near, 1]) * 32 <= 1).mean())
    assert found.far == pytest.approx((np.abs(X[~near, 1]) * 32 <= 1).mean())
    assert found.near > found.far
    assert found.coverage.correlation > 0
    assert len(found.coverage.distance) == 8
    assert found.coverage.success @ np.full(8, 50) == pytest.approx(found.outcome.successes.sum())


def test_maps_of_cost_and_success():
    ((cost, success),) = audited().outcome.maps
    a, b = np.linspace(-2, 2, 9), np.linspace(-1, 1, 9)
    np.testing.assert_array_equal(success.values, np.broadcast_to(np.abs(b) * 32 <= 1, (9, 9)))
    np.testing.assert_allclose(cost.values, a[:, None] ** 2 + b[None] ** 2 * 1365, rtol=1e-12)
    assert audited().map.coordinates == (0, 1)


def test_the_worst_states_are_apart_and_the_costliest():
    found = audited(worst=3)
    starts = np.stack([np.asarray(one.states[0]) for one in found.worst])
    assert found.worst_costs[0] == found.outcome.costs.max()
    assert np.all(np.abs(starts[:, 1]) > 0.9)
    apart = np.linalg.norm((starts[:, None] - starts[None]) / [4, 2], axis=2)[np.triu_indices(3, 1)]
    assert np.all(apart > 0.1)


def test_what_is_suggested_covers_what_fails_and_training_on_it_helps():
    """Any state with x₁ ≠ 0 teaches the second coordinate; the state whose trajectory comes near to most of what fails is suggested."""
    found = audited(retrain={"optimizer": optax.sgd(1e-6), "iterations": 1}, add=1)
    (state,) = found.suggested.states
    fails = found.states[found.outcome.successes < 0.5]
    reached = []
    for x in fails:  # each as a candidate: x₀ goes to zero, x₁ doubles
        trajectory = np.array([[x[0] if h == 0 else 0.0, x[1] * 2**h] for h in range(6)])
        reached.append(np.sum(np.min(np.linalg.norm((fails[:, None] - trajectory[None]) / [4, 2], axis=2), axis=1) <= 0.1))
    best = int(np.argmax(reached))
    assert reached[best] > 1.2 * np.mean(reached)
    np.testing.assert_array_equal(state, fails[best])
    assert found.suggested.gain > 0.02  # by what independent computation, test_own_systems says
    assert f"Add [{state[0]:.4g}, {state[1]:.4g}] to those it is trained on" in found.suggested.note
    assert found.retrained is not None
    assert not np.array_equal(found.retrained.controller.K, HALF.K)

    network = offspan.MLP.init(KEY, 2, 2, width=8, depth=2)
    near = {"optimizer": optax.adam(3e-2), "iterations": 300}
    start = offspan.train(PLANT, network, SEEN, **near).controller
    reached = offspan.audit(
        PLANT, start, SEEN, REGION, success=lambda x: jnp.sum(x**2) < 0.1, points=5, states=200, add=4, key=KEY, retrain=near
    )
    assert reached.retrained is not None
    assert reached.retrained.share > reached.outcome.share + 0.1


def test_no_state_is_suggested_from_which_the_reference_fails():
    """A reference that steers to zero where x₁ > 0, and doubles x elsewhere."""
    found = audited(reference=lambda x: jnp.where(x[1] > 0, -x, x), add=3)
    assert 0.3 < np.mean(found.states[found.outcome.successes < 0.5, 1] > 0) < 0.7  # the controller fails on both sides
    assert len(found.suggested.states)
    assert np.all(found.suggested.states[:, 1] > 0)
    assert 0 < found.suggested.gain <= np.mean((found.outcome.successes < 0.5) & (found.states[:, 1] > 0))
    hopeless = audited(reference=HALF, states=50, points=3)
    assert hopeless.suggested.states.shape == (0, 2)
    assert "the reference fails, too" in hopeless.suggested.note


@pytest.mark.parametrize(
    ("horizon", "options"), [(10**10, {}), (3, {"points": 10**6}), (3, {"states": 10**12}), (3, {"samples": 10**8}), (10**7, {})]
)
def test_what_cannot_fit_is_refused_before_it_is_begun(horizon, options):
    with pytest.raises(offspan.OffspanError, match=r"^audit: .* need about .* GiB, but .* are free"):
        offspan.audit(offspan.identity(2, horizon=horizon), HALF, SEEN, REGION, success=inside, **options)


def test_no_state_is_suggested_from_which_the_trajectory_has_ended():
    """x′ = x where |x₁| > 0.5, whatever the controller does, and all of it fails beyond 0.2."""
    problem = offspan.FunctionProblem(
        lambda x, u: 0.9 * x + 0 * u, lambda x, u: x @ x, state_dim=2, control_dim=2, horizon=5, done=lambda x: jnp.abs(x[1]) > 0.5
    )
    arguments: Any = (problem, HALF, SEEN, REGION)
    options: Any = {"success": lambda x: jnp.abs(x[1]) < 0.1, "points": 5, "states": 300, "key": KEY}
    found = offspan.audit(*arguments, **options)
    fails = found.outcome.successes < 0.5
    ended = np.abs(found.states[:, 1]) > 0.5
    assert 0.3 < np.mean(fails & ended) < np.mean(fails) - 0.1
    assert len(found.suggested.states) == 2
    assert np.all(np.abs(found.suggested.states[:, 1]) <= 0.5)
    assert found.suggested.gain <= np.mean(fails & ~ended)
    assert all(abs(one.states[0][1]) <= 0.5 for one in found.worst), "they say nothing of the controller"
    beyond = offspan.audit(*arguments, **{**options, "success": lambda x: jnp.abs(x[1]) <= 0.5})
    assert beyond.suggested.states.shape == (0, 2)
    assert "the trajectory ends at its start" in beyond.suggested.note


def test_training_again_without_derivatives_is_refused_before_anything_is_simulated():
    calls = []
    problem = offspan.BlackBox(
        lambda X, U: calls.append(len(X)) or X + U, lambda X, U: np.sum(X**2, axis=1), state_dim=2, control_dim=2, horizon=5
    )
    for retrain, said in (
        ({"optimizer": optax.adam(1e-3), "iterations": 5}, "`retrain` needs a gradient without derivatives"),
        ({"optimizer": optax.adam(1e-3), "iterations": 5, "gradient": offspan.Exact()}, "`retrain` needs a gradient without derivatives"),
        ({"optimizer": optax.adam(1e-3), "iterations": 5, "gradient": 5}, "must be an estimator"),
        ({"optimizer": optax.adam(1e-3), "iterations": 5, "gradient": offspan.TwoPoint(0.1, 2), "horizons": (2, 3)}, "must end with"),
        ({"optimizer": optax.adam(1e-3), "iterations": 5, "gradient": offspan.TwoPoint(0.1, 2), "horizons": ()}, "`horizons` is"),
        ({"optimizer": optax.adam(1e-3), "iterations": 5, "gradient": offspan.TwoPoint(0.1, 2), "key": 3}, "must be a random key"),
    ):
        with pytest.raises(offspan.OffspanError, match=said):
            offspan.audit(problem, HALF, SEEN, REGION, success=inside, retrain=retrain)
    assert sum(calls) < 10


def test_the_sign_of_a_gain_is_suspected_where_it_fails_from_its_own_states():
    wrong = offspan.Linear([[0.0, 0.0], [0.0, 1.0]])
    found = offspan.audit(PLANT, wrong, jnp.array([[0.0, 1.0]]), REGION, success=inside, points=5, states=50)
    assert "u = −K x, change its sign" in found.suggested.note


@pytest.mark.parametrize(("growth", "beyond", "coordinates"), [(0.9, 0, 2), (4.0, 2, 2), (4.0, 2, 1), (1e9, 2, 1)])
def test_trajectories_that_explode_do_not_hide_their_beginnings(growth, beyond, coordinates):
    """x′ = [[g, 0.1], [0.1, g]] x over 60 steps, from two states of a region of one or two coordinates."""
    problem = offspan.LQR(np.array([[growth, 0.1], [0.1, growth]]), horizon=60)
    region = {d: REGION[d] for d in range(coordinates)}
    options: Any = {"success": lambda x: jnp.abs(x[0]) > 1e300, "points": 5, "states": 50, "worst": 2}
    found = offspan.audit(problem, offspan.Linear(np.zeros((2, 2))), SEEN, region, **options)
    figure = audit_report.trajectory_figure(found)
    for ax in figure.axes:
        assert np.ptp(ax.get_ylim()) < 1_000
        assert all(np.size(line.get_xdata()) > 1 for line in ax.lines)
    low, _ = figure.axes[0].get_ylim()
    assert low < min(one.states[0][0] for one in found.worst)
    assert (f"{beyond} of 2 grow far beyond the region" in figure.get_suptitle()) == (beyond > 0)


def test_it_hardly_matters_where_everything_succeeds():
    found = offspan.audit(PLANT, offspan.Linear(-jnp.eye(2)), SEEN, REGION, points=5, states=100, success=inside)
    assert found.outcome.share == 1
    assert "hardly matters" in found.suggested.note
    assert found.suggested.states.shape == (0, 2)
    assert np.isnan(found.coverage.correlation)
    assert len(found.worst) == 5  # the costliest, all the same


def test_without_a_criterion_success_is_a_cost_like_that_of_the_seen_states():
    found = audited(success=None)
    of_seen = float(offspan.cost(PLANT, HALF, SEEN))
    np.testing.assert_array_equal(found.outcome.successes, found.outcome.costs <= 2 * of_seen)
    assert "2 times that of the worst seen state" in found.criterion


def test_a_plant_with_fewer_inputs_than_states_beside_dlqr():
    A, B = jnp.array([[1.0, 0.1], [0.3, 1.0]]), jnp.array([[0.0], [0.1]])
    plant = offspan.LQR(A, B, R=[[0.1]], horizon=60, coordinates=("angle [rad]", "rate [rad/s]"))
    weak = offspan.Linear([[-4.0, -2.0]])
    found = offspan.audit(plant, weak, SEEN, REGION, points=5, states=100)
    assert found.reference is not None
    assert "dlqr" in found.reference_name
    # Beyond all horizons nothing costs less than the stationary controller: xᵀPx, P by iterating the Riccati recursion.
    P = jnp.eye(2)
    for _ in range(2000):
        P = jnp.eye(2) + A.T @ P @ A - A.T @ P @ B @ jnp.linalg.solve(0.1 * jnp.eye(1) + B.T @ P @ B, B.T @ P @ A)
    X = found.states
    np.testing.assert_allclose(found.reference.costs, np.einsum("qi,ij,qj->q", X, P, X), rtol=1e-3)
    assert np.all(found.outcome.costs > 0.999 * found.reference.costs)
    assert "angle [rad]" in found.coordinates


def test_a_ratio_to_the_reference_is_of_states_where_there_is_one():
    """From half of the region both cost nothing, so that their ratio is no number."""
    plant = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: jnp.maximum(x[0], 0.0), state_dim=1, control_dim=1, horizon=1)
    stays, halved = offspan.Linear([[0.0]]), offspan.Linear([[-0.5]])
    found = offspan.audit(plant, stays, [[1.0]], {0: (-1.0, 1.0)}, success=lambda x: x[0] < 1, reference=halved, points=3, states=40)
    count = int(np.sum(found.states > 0))
    assert 0 < count < 40
    assert f"In the median of the {count} states from which that is finite and positive it costs {2 / 1.5:.3g} times" in str(found)
    nothing = offspan.audit(plant, stays, [[1.0]], {0: (-2.0, -1.0)}, success=lambda x: x[0] < 1, reference=halved, points=3, states=40)
    assert "not compared with that of the reference" in str(nothing)


def test_coordinates_that_matter_are_mapped_first():
    """Success depends on the second and the fourth coordinate of five."""
    problem = offspan.identity(5, horizon=2)
    region = dict.fromkeys(range(5), (-1.0, 1.0))
    still = offspan.Linear(jnp.zeros((5, 5)))
    found = offspan.audit(problem, still, jnp.eye(5)[:1], region, success=lambda x: (x[1] > 0) | (x[3] > 0), points=3, key=KEY)
    assert found.map.coordinates == (1, 3)
    assert len(found.outcome.maps) == 6


def test_black_boxes_and_noise():
    box = offspan.BlackBox(lambda X, U: X + U, lambda X, U: np.sum(X**2, axis=1), state_dim=2, control_dim=2, horizon=5)
    options: dict[str, Any] = {"success": inside, "points": 3, "states": 50, "key": KEY}
    ours, twin = (offspan.audit(one, HALF, SEEN, REGION, **options) for one in (box, PLANT))
    np.testing.assert_allclose(ours.outcome.costs, twin.outcome.costs)
    np.testing.assert_allclose(ours.suggested.states, twin.suggested.states)
    narrow = {**REGION, 1: (-0.1, 0.1)}  # about 1/32, where the noise decides
    noisy = offspan.audit(offspan.Noisy(PLANT, process=0.02), HALF, SEEN, narrow, samples=20, **options)
    assert np.mean((noisy.outcome.successes > 0) & (noisy.outcome.successes < 1)) > 0.1
    one = offspan.audit(offspan.Noisy(PLANT, process=0.02), HALF, SEEN, narrow, **options)
    np.testing.assert_allclose([trajectory.costs.sum() for trajectory in one.worst], one.worst_costs)


def test_rewards_and_numbers_are_no_success():
    rewards = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: -1.0 + 0 * x[0], state_dim=2, control_dim=2, horizon=5)
    with pytest.raises(offspan.OffspanError, match=r"the worst seen state costs -6, .* pass `success`"):
        offspan.audit(rewards, HALF, SEEN, REGION, points=3, states=20)
    with pytest.raises(offspan.OffspanError, match=r"one truth value for one state, but returned float64 of shape \(\)"):
        audited(success=lambda x: x[1])
    lost = offspan.audit(PLANT, offspan.Linear(1e200 * jnp.eye(2)), SEEN, REGION, success=lambda x: ~(x[0] > 1), points=3, states=20)
    assert lost.outcome.share == 0  # NaN is not above 1, and no success


def test_a_state_is_suggested_once():
    still = offspan.Linear(jnp.zeros((2, 2)))
    found = offspan.audit(PLANT, still, SEEN, {1: (-1.0, 1.0)}, success=lambda x: x[1] < 0.9, add=3, points=3, states=200, key=KEY)
    assert 1 <= len(found.suggested.states) < 3
    assert len(np.unique(found.suggested.states, axis=0)) == len(found.suggested.states)


def test_the_page_says_it_all_without_a_script(tmp_path):
    found = audited(retrain={"optimizer": optax.sgd(1e-6), "iterations": 1})
    path = tmp_path / "audit.html"
    found.save(path)
    page = path.read_text()
    for heading in ("Where it works", "How far from what it was trained on", "Where it is worst", "Which states to add", "Trained again"):
        assert heading in page
    assert f"{found.outcome.share:.1%}" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=[\"']http", page)
    assert page.count("<img") == 4
    evil = offspan.LQR(jnp.eye(2), horizon=5, coordinates=("<b>x</b>", r"$\frac{1}{$"))
    offspan.audit(evil, HALF, SEEN, REGION, success=inside, points=3, states=50).save(path)
    assert "<b>x" not in path.read_text()
    assert r"$\frac{1}{$" in path.read_text()


def test_a_region_of_one_coordinate(tmp_path):
    found = offspan.audit(PLANT, HALF, SEEN, {1: (-1, 1)}, success=inside, points=7, states=50)
    assert found.map.coordinates == (1,)
    found.save(tmp_path / "audit.html")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"region": {5: (0, 1)}}, r"`region` is .* intervals, low < high, for some coordinates 0\.\.1"),
        ({"region": {0: (1, 0)}}, "`region` is"),
        ({"region": [0, 1]}, "`region` is"),
        ({"region": {0.5: (0, 1)}}, "`region` is"),
        ({"states": 0}, "`states` is 0"),
        ({"at": [1.0]}, "`at` has shape"),
        ({"seen": [[1.0]]}, "`seen` has shape"),
        ({"retrain": {}}, '`retrain` is {}, but must be options of `train_batch` with at least an "optimizer" and "iterations"'),
        (
            {"retrain": {"optimizer": optax.sgd(0.1), "iterations": 1, "stpo": None}},
            r"`retrain` has no option 'stpo' \(did you mean 'stop'",
        ),
        ({"retrain": {"optimizer": optax.sgd(0.1), "iterations": 1, "resume": None}}, "`retrain` has no option 'resume'"),
        ({"success": lambda x: x}, "`success` must return one truth value"),
    ],
)
def test_what_does_not_fit_an_audit(options, said):
    given = {"seen": SEEN, "region": REGION, "success": inside, "points": 3, "states": 20, **options}
    with pytest.raises(offspan.OffspanError, match=said):
        offspan.audit(PLANT, HALF, given.pop("seen"), given.pop("region"), **given)


def test_a_page_into_nowhere(tmp_path):
    with pytest.raises(offspan.OffspanError, match="there is no folder"):
        audited().save(tmp_path / "none" / "audit.html")


SPEC = """
seen_states = [[2.6], [3.6]]
points = 5
states = 60
angles = [1]
[system]
problem = "pendulum"
horizon = 20
[controller]
gain = [[-30.0, -8.0]]
[region]
0 = [0.0, 6.3]
1 = [-4, 4]
[success]
1 = [-0.5, 0.5]
"""


def invoke(*arguments: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    from offspan.cli import app

    result = CliRunner().invoke(app, ["audit", *arguments, "--folder", str(Path(arguments[0]).parent / "runs")])
    return result.exit_code, result.output if result.exception is None else str(result.exception)


def test_a_file_is_audited_from_the_command_line(tmp_path, monkeypatch):
    """The same numbers as from the library, with what the file says; an escape sequence in a coordinate's name does not get through."""
    monkeypatch.setattr(offspan.Pendulum, "coordinates", property(lambda _: ("θ [rad]", "\x1b[31mω")))
    (tmp_path / "swing.toml").write_text(SPEC)
    code, said = invoke(str(tmp_path / "swing.toml"))
    assert code == 0, said
    assert "θ [rad] in [0, 6.3]" in " ".join(said.split())
    assert "\x1b" not in said
    assert "(at the end, \\x1b[31mω in [-0.5, 0.5])" in said
    gain = offspan.Linear(np.array([[-30.0, -8.0]]))
    found = offspan.audit(
        offspan.Pendulum(horizon=20),
        gain,
        np.array([[2.6, 0.0], [3.6, 0.0]]),
        {0: (0, 6.3), 1: (-4, 4)},
        success=lambda x: jnp.abs(x[1]) <= 0.5,
        points=5,
        states=60,
        key=jax.random.key(0),
    )
    assert f"{found.outcome.share:.1%}" in said
    assert 0 < found.outcome.share < 1
    assert f"{found.outcome.share:.1%}" in (tmp_path / "swing.html").read_text()


FACTORY = """
import offspan

def make():
    return offspan.identity(2, horizon=3), offspan.Linear([[-1.0, 0.0], [0.0, 0.0]])

def nothing():
    return 3
"""


def test_code_that_a_file_names_runs_only_when_it_is_trusted(tmp_path):
    (tmp_path / "my_plant.py").write_text(FACTORY)
    text = 'seen_states = [[1.0, 0.0]]\nstates = 20\npoints = 3\n[system]\nfactory = "my_plant:make"\n[region]\n0 = [-1, 1]\n1 = [-1, 1]\n'
    path = tmp_path / "own.toml"
    path.write_text(text)
    code, said = invoke(str(path))
    assert code != 0
    assert "--trust-code" in said
    assert not (tmp_path / "own.html").exists()
    code, said = invoke(str(path), "--trust-code")
    assert code == 0, said
    assert (tmp_path / "own.html").exists()
    path.write_text(
        text.replace("factory", "gymnasium").replace("my_plant:make", "my_plant:Plant-v0").replace("[region]", "horizon = 3\n[region]")
    )
    code, said = invoke(str(path))
    assert code != 0
    assert "names code" in said
    for factory, expected in {
        "my_plant:nothing": "must return a problem",
        "my_plant:gone": "no such function",
        "gone:make": "there is no module",
    }.items():
        path.write_text(text.replace("my_plant:make", factory))
        assert expected in invoke(str(path), "--trust-code")[1]


@pytest.mark.parametrize(
    ("wrong", "given", "said"),
    [
        ("0 = [0.0, 6.3]", "2 = [0.0, 6.3]", "`region` has an entry '2', but coordinates are 0 to 1"),
        ("0 = [0.0, 6.3]", "0 = [6.3, 0.0]", "`region`: has [6.3, 0] for coordinate 0, but must have an interval"),
        ('problem = "pendulum"', 'problem = "pendulum"\ngymnasium = "Pendulum-v1"', "`system` must name one of"),
        ('problem = "pendulum"\nhorizon = 20', 'gymnasium = "Pendulum-v1"', "`system.horizon` is missing"),
        ("gain = [[-30.0, -8.0]]", 'policy = "gone.onnx"', "there is no file"),
        ("gain = [[-30.0, -8.0]]", "", "there is nothing to audit: give the spec a table [controller]"),
        ("gain = [[-30.0, -8.0]]", 'gain = [[1.0, 1.0]]\nrun = "x"', "`controller` must give one of policy, gain and run"),
        ("angles = [1]", "angles = [1, 7]", "`angles` names coordinate 7"),
        ("gain = [[-30.0, -8.0]]", "gain = [[-30.0, -8.0]]\nlow = 1.0", "`controller.low`"),
        ("points = 5", "pionts = 5", "there is no key 'pionts' (did you mean 'points'?)"),
        ("[[-30.0, -8.0]]", "[[-30.0]]", "does not take a state of shape (2,)"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path, wrong, given, said):
    assert wrong in SPEC
    (tmp_path / "swing.toml").write_text(SPEC.replace(wrong, given))
    code, message = invoke(str(tmp_path / "swing.toml"))
    assert code != 0
    assert said in message
