"""One spec of a system of one's own serves `run`, `map`, `audit` and `select`, whatever the system is; its code runs only when trusted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import offspan
from offspan.cli import app
from offspan.experiments.auditing import Parts, audit_file
from offspan.experiments.registry import load_spec
from offspan.experiments.store import RunFolder
from offspan.suggestions import expected_gain

EXAMPLES = Path(__file__).parent.parent / "examples"
MODULE = """
import pathlib
import numpy as np
import offspan

with (pathlib.Path(__file__).parent / "imported").open("a") as file:
    file.write("x")

def make():
    return offspan.BlackBox(
        lambda X, U: X + 0.3 * np.stack([X[:, 1], U[:, 0] + np.sin(X[:, 0])], axis=1), lambda X, U: np.sum(X**2, axis=1),
        state_dim=2, control_dim=1, horizon=8, coordinates=("angle [rad]", "rate [rad/s]"))

def with_controller():
    return make(), offspan.Linear([[-3.0, -3.0]])
"""
SPEC = """
seeds = 3
iterations = 12
states = 60
points = 5
precision = "float64"
seen_states = [[0.5, 0.0], [-0.4, 0.1]]
[system]
factory = "own_plant:make"
[network]
width = 6
depth = 2
activation = "tanh"
[training]
learning_rate = 0.05
radius = 0.1
directions = 3
horizons = [4]
[region]
0 = [-1.5, 1.5]
1 = [-1, 1]
[retrain]
iterations = 3
learning_rate = 0.01
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a spec and the code that it names, from another working folder."""
    (tmp_path / "own_plant.py").write_text(MODULE)
    (tmp_path / "swing.toml").write_text(SPEC)
    monkeypatch.setitem(sys.modules, "own_plant", None)
    monkeypatch.delitem(sys.modules, "own_plant")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def without_states() -> str:
    return SPEC.replace("seen_states = [[0.5, 0.0], [-0.4, 0.1]]\n", "")


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, " ".join((result.output if result.exception is None else str(result.exception)).split())


def test_one_spec_is_run_mapped_audited_and_chosen_for(own):
    spec, runs = own / "swing.toml", own / "runs"
    trusting = ("--trust-code", "--folder", runs)
    code, said = invoke("audit", spec, *trusting)
    assert code != 0
    assert "train one first with `offspan run`" in said
    code, said = invoke("run", spec, *trusting)
    assert code == 0, said
    result = RunFolder(runs / "swing").load_result()
    assert (runs / "swing" / "figures" / "trajectories.png").stat().st_size > 5_000

    import own_plant  # pyright: ignore[reportMissingImports]

    problem, seen = own_plant.make(), np.array([[0.5, 0.0], [-0.4, 0.1]])
    starts = [
        offspan.Bounded(offspan.MLP.init(jax.random.key(seed), 2, 1, width=6, depth=2, activation="tanh"), -1.0, 1.0).net
        for seed in range(3)
    ]
    batch = offspan.train_batch(
        problem,
        starts,
        seen,
        optimizer=optax.adam(0.05),
        iterations=12,
        key=jax.random.key(0),
        gradient=offspan.TwoPoint(0.1, 3),
        horizons=(4, 8),
    )
    costs = np.array([[float(offspan.cost(problem, pi, x[None])) for x in seen] for pi in batch.controllers])
    np.testing.assert_allclose(result.seen_cost, costs, rtol=1e-9)
    best = int(np.argmin(costs.mean(axis=1)))
    assert int(result.shown_seed) == best
    np.testing.assert_allclose(
        result.trajectory[1], offspan.rollout(problem, batch.controllers[best], jnp.asarray(seen[1])).states, rtol=1e-9
    )

    code, said = invoke("map", spec, "--points", 3, *trusting)
    assert code == 0, said
    drawn = np.loadtxt(runs / "swing" / "figures" / "map-0-1.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(drawn[:, 0], np.repeat([-1.5, 0.0, 1.5], 3))
    corner = float(offspan.cost(problem, batch.controllers[best], np.array([[-1.5, -1.0]])))
    assert drawn[0, 2] == pytest.approx(corner, rel=1e-9)

    code, said = invoke("audit", spec, *trusting)
    assert code == 0, said
    assert "trained again" in said
    assert "angle [rad] in [-1.5, 1.5]" in said
    assert (own / "swing.html").exists()

    chosen = without_states() + "[choose]\nk = 1\ncandidates = [[0.5, 0.0], [1.0, 0.0], [0.0, 0.5]]\n"
    (own / "choose.toml").write_text(chosen + 'method = "farthest"\n')
    code, said = invoke("select", own / "choose.toml", "--trust-code")
    assert code == 0, said
    assert len(load_spec(own / "choose-farthest.toml").seen_states) == 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("command", ["run", "map", "audit", "select"])
def test_code_is_not_even_imported_without_leave(own, command):
    if command == "map":
        assert invoke("run", own / "swing.toml", "--trust-code", "--folder", own / "runs")[0] == 0
        (own / "imported").unlink()
        sys.modules.pop("own_plant", None)
    if command == "select":
        chosen = without_states() + "[choose]\nk = 1\ncandidates = [[0.5], [1.0]]\n"
        (own / "swing.toml").write_text(chosen)
    more = () if command == "select" else ("--folder", own / "runs")
    code, said = invoke(command, own / "swing.toml", *more)
    assert code != 0
    assert "names code, 'own_plant:make', which would run with all your rights; if you trust it, say --trust-code" in said
    assert not (own / "imported").exists()


def test_a_run_is_listed_and_shown_without_its_code(own):
    assert invoke("run", own / "swing.toml", "--trust-code", "--folder", own / "runs")[0] == 0
    (own / "imported").unlink()
    for command in (("list",), ("show", "swing"), ("report", "swing")):
        code, said = invoke(*command, "--folder", own / "runs")
        assert code == 0, said
    assert not (own / "imported").exists()


def test_what_is_trained_already_is_not_run(own):
    for old, new in (("own_plant:make", "own_plant:with_controller"), ("[region]", "[controller]\ngain = [[-1.0, -1.0]]\n[region]")):
        (own / "swing.toml").write_text(SPEC.replace(old, new))
        code, said = invoke("run", own / "swing.toml", "--trust-code", "--folder", own / "runs")
        assert code != 0
        assert "is trained already" in said
        shutil.rmtree(own / "runs")
        assert invoke("audit", own / "swing.toml", "--trust-code")[0] == 0


def test_a_model_beside_the_spec_is_found_from_anywhere(own):
    shutil.copy(EXAMPLES / "cartpole.xml", own)
    text = SPEC.replace('factory = "own_plant:make"', 'mujoco = "cartpole.xml"\nhorizon = 5').replace("iterations = 12", "iterations = 2")
    (own / "cart.toml").write_text(text.replace("horizons = [4]\n", ""))
    code, said = invoke("run", own / "cart.toml", "--folder", own / "runs")
    assert code == 0, said
    code, said = invoke("map", "cart", "--folder", own / "runs", "--points", 2)
    assert code == 0, said


class StoppedError(Exception):
    """In place of Ctrl-C."""


def test_an_audit_that_was_stopped_continues_with_what_it_has(own, monkeypatch):
    """From the file: all parts that were done are read, none of them is made again, and the outcome is the same to the bit."""
    text = SPEC.replace("own_plant:make", "own_plant:with_controller")
    (own / "swing.toml").write_text(text)
    whole = audit_file(own / "swing.toml", own / "runs", trust_code=True)[1]
    assert whole.retrained is not None
    for stop_at in (2, 4, 7):
        shares: list[float] = []

        def progress(share, shares=shares, stop_at=stop_at):
            shares.append(share)
            if len(shares) == stop_at:
                raise StoppedError

        with pytest.raises(StoppedError):
            audit_file(own / "swing.toml", own / "runs", trust_code=True, progress=progress)
        kept = own / ".swing.audit"
        done = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.npz")}
        assert len(done) >= stop_at - 1
        before = {path: path.read_bytes() for path in kept.glob("*.npz")}
        monkeypatch.setattr(Parts, "remove", lambda self: None)
        again = audit_file(own / "swing.toml", own / "runs", trust_code=True)[1]
        monkeypatch.undo()
        assert all(path.read_bytes() == content for path, content in before.items() if path.stem != "training")
        np.testing.assert_array_equal(again.outcome.costs, whole.outcome.costs)
        np.testing.assert_array_equal(again.retrained.costs, whole.retrained.costs)  # pyright: ignore[reportOptionalMemberAccess]
        shutil.rmtree(kept)
        os.chdir(own / "elsewhere")
        sys.modules.pop("own_plant", None)


def test_parts_of_another_spec_or_damaged_are_made_again(tmp_path):
    ours, others = Parts(tmp_path / "kept", "ours"), Parts(tmp_path / "kept", "others")
    ours["a"] = {"values": np.arange(3.0)}
    assert ours["a"]["values"].tolist() == [0, 1, 2]
    assert (list(ours), len(ours), "a" in others) == (["a"], 1, False)
    (tmp_path / "kept" / "a.npz").write_bytes(b"PK spoilt")
    assert "a" not in ours
    ours.remove()
    assert not (tmp_path / "kept").exists()


def test_the_expected_gain_is_what_distance_predicts():
    """Where success is a distance below 0.3, the gain is the share that comes that near; by brute force, for noisy successes."""
    rng = np.random.default_rng(0)
    distances = rng.uniform(0, 1, 500)
    closer = np.minimum(distances, rng.uniform(0, 1, 500))
    exact = np.mean(closer <= 0.3) - np.mean(distances <= 0.3)
    assert exact > 0.1
    assert expected_gain(distances, (distances <= 0.3).astype(float), closer) == pytest.approx(exact, abs=0.01)
    assert expected_gain(distances, (distances <= 0.3).astype(float), distances) == pytest.approx(0.0, abs=1e-12)
    # A fit that never increases, as the minimax of block means: p(d_i) = min over j ≤ i of max over k ≥ i of mean(s_j..s_k), with max and
    # min exchanged for a decreasing fit.
    distances, successes = np.sort(rng.uniform(0, 1, 30)), (rng.uniform(0, 1, 30) < 0.5).astype(float)
    fitted = [max(min(successes[j : k + 1].mean() for j in range(i + 1)) for k in range(i, 30)) for i in range(30)]
    closer = distances[rng.integers(0, np.arange(30) + 1)]
    predicted = np.mean([fitted[int(np.flatnonzero(distances == one)[0])] for one in closer]) - successes.mean()
    assert expected_gain(distances, successes, closer) == pytest.approx(predicted, abs=1e-12)
    assert expected_gain(np.full(4, np.inf), np.array([0.0, 1.0, 0.0, 1.0]), np.zeros(4)) == 0


def test_for_a_well_posed_lqr_it_hardly_matters_which_states_are_added():
    """Trained from two basis states of three, within 10 % of dlqr over the whole region; and it says so."""
    A = jnp.array([[0.9, 0.2, 0.0], [0.0, 0.8, 0.3], [0.2, 0.0, 0.7]])
    plant = offspan.LQR(A, jnp.eye(3), R=jnp.eye(3), horizon=30)
    run = offspan.train_lqr(plant, jnp.eye(3)[:2], learning_rate=0.01, iterations=3_000, clip=1.0)
    region = dict.fromkeys(range(3), (-3.0, 3.0))
    found = offspan.audit(plant, run.controller, jnp.eye(3)[:2], region, states=200, points=3)
    assert found.reference is not None
    assert np.max(found.outcome.costs / found.reference.costs) < 1.1
    assert "It hardly matters here" in found.suggested.note
    assert "2 times the cost of the stationary optimal controller (dlqr) from the same state" in found.criterion
    still = offspan.audit(plant, offspan.Linear(3.0 * jnp.eye(3)), jnp.eye(3)[:2], region, states=50, points=3)
    assert still.outcome.share == 0
    assert "train it further first" in still.suggested.note


def test_the_study_of_the_whole_loop_runs(tmp_path):
    command = [sys.executable, EXAMPLES / "studies" / "closed_loop.py", "--seeds", "1", "--iterations", "5", "--states", "8"]
    done = subprocess.run([*command, "--points", "2", "--output", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "suggested" in (tmp_path / "results.csv").read_text()
    assert (tmp_path / "success.png").exists()


def test_scores_of_an_unstable_plant_at_rest_are_warned_of():
    """x' = 2x grows 2³⁰-fold over the horizon; begun with a stabilising gain it does not, and nothing is said."""
    plant = offspan.LQR([[2.0, 0.1], [0.0, 1.5]], [[0.0], [1.0]], R=[[1.0]], horizon=30)
    with pytest.warns(UserWarning, match=r"grow to 1e\+09 times the candidates' length.*stationary_controller"):
        chosen = offspan.select(plant, jnp.eye(2), 1, method="gramian-trace", key=jax.random.key(0))
    assert np.max(np.abs(chosen.scores)) > 1e15
    steady = offspan.Linear(offspan.stationary_controller(plant))
    assert not offspan.select(plant, jnp.eye(2), 1, method="gramian-trace", key=jax.random.key(0), controllers=[steady]).note
