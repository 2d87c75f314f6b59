"""Comparisons of methods that choose initial states: from a spec to its tables, and the choice for a spec of one's own."""

import itertools
import re
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import offspan
from offspan import cli
from offspan.experiments.registry import load_preset, load_spec
from offspan.experiments.run import run
from offspan.experiments.selection import SelectionSpec
from offspan.experiments.selection_training import Runs, _evaluated
from offspan.report.results import report
from offspan.report.selection import correlations, outcomes, share_of_random, typical

LQR = """
kind = "selection"
problem = "gaussian"
dim = 4
horizon = 3
choose = 2
seeds = 3
iterations = 40
evaluations = 4
pilot_iterations = 10
methods = ["gramian-logdet", "adaptive", "flow"]
policy_gradient = { optimizer = "gradient-descent", learning_rate = 0.01 }
"""
PENDULUM = """
kind = "selection"
problem = "pendulum"
settings = { horizon = 4 }
candidates = [[0.5], [1.5], [2.5], [3.5], [4.5]]
choose = 2
seeds = 2
sets = 3
iterations = 40
looks = 4  # the names that 0.1 had
look_every = 10
pilot_iterations = 40
pilot_sets = 2
width = 4
depth = 2
methods = ["farthest", "pilot"]
policy_gradient = { optimizer = "adam", learning_rate = 0.01 }
"""


def spec_of(folder: Path, text: str, name: str = "small") -> SelectionSpec:
    (folder / f"{name}.toml").write_text(text)
    spec = load_spec(folder / f"{name}.toml")
    assert isinstance(spec, SelectionSpec)
    return spec


@pytest.fixture(scope="session")
def linear(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linear")
    spec = spec_of(folder, LQR)
    return spec, run(spec, folder, lambda share: None)


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    spec = spec_of(folder, PENDULUM)
    return spec, run(spec, folder, lambda share: None)


def test_a_comparison_holds_what_plain_runs_find(linear):
    """Costs of every set by one run after another; choices by `select`; the least cost by Kx = −Ax, which leaves x_0 alone."""
    spec, result = linear
    sets = list(itertools.combinations(range(4), 2))
    assert result.sets.values.tolist() == [list(S) for S in sets]
    for i, seed in enumerate(spec.seeds):
        problem = offspan.gaussian(jax.random.key(seed), 4, horizon=3)
        for s, S in enumerate(sets):
            K = offspan.train_lqr(problem, np.eye(4)[list(S)], learning_rate=0.01, iterations=40).K
            expected = [float(offspan.cost(problem, offspan.Linear(K), x[None])) for x in np.eye(4)]
            np.testing.assert_allclose(result.cost.values[i, s], expected, rtol=1e-9)
        chosen = offspan.select(problem, np.eye(4), 2, method="gramian-logdet", key=jax.random.key(0))
        assert result.sets.values[result.choice.values[i, 0]].tolist() == sorted(chosen.indices.tolist())
        times = len(np.unique(np.geomspace(1, 40, 20).round()))
        assert result.rollouts.values[i].tolist() == [4, 2 * 4 + 5 * 1 + 5 * 2, 6 * (2 * times + 4)]
    np.testing.assert_allclose(result.least_cost, 1.0)  # ‖x_0‖², and then nothing
    assert np.all(np.diff(result.cost_curve.values[:, :, [0, -1]]) < 0)
    assert np.all(np.abs(result.alignment_curve) <= 1 + 1e-12)
    assert result.explores.all()


def test_the_tables_are_ratios_of_plain_medians(linear):
    _, result = linear
    random, logdet, *_, best = outcomes(result)
    excess = result.cost.values.mean(axis=2) - 1
    chosen = excess[np.arange(3), result.choice.values[:, 0]]
    assert share_of_random(result, logdet, typical).value == pytest.approx(np.median(chosen) / np.median(np.median(excess, axis=0)))
    np.testing.assert_allclose(best.costs[:, 0].mean(axis=1) - 1, excess.min(axis=1), rtol=1e-12)
    assert random.costs.shape == (3, 6, 4)
    made = report(result)
    assert [row[0] for row in made.tables["table"].rows] == ["random", "gramian-logdet", "adaptive", "flow", "best set"]
    told = {row.name: row.within.value for row in correlations(result)}
    assert result.criterion.values[3] == "gramian-logdet"
    ranks = lambda x: np.argsort(np.argsort(x))  # noqa: E731
    by_hand = [np.corrcoef(ranks(result.score.values[i, :, 3]), ranks(-excess[i]))[0, 1] for i in range(3)]
    assert told["gramian-logdet"] == pytest.approx(np.mean(by_hand))
    assert set(made.figures()) == {"methods", "correlations", "training"}


def test_a_comparison_of_networks_trains_each_set_from_each_start(network):
    spec, result = network
    problem = offspan.Pendulum(horizon=4)
    pool = np.array([[angle, 0.0] for angle in (0.5, 1.5, 2.5, 3.5, 4.5)])
    np.testing.assert_array_equal(result.candidates, pool)
    assert int(result.is_random.sum()) == 3 <= result.sizes["set"] <= 3 + 2 * 2
    stop = offspan.NoImprovement(every=10, patience=50, gain=1e-5)
    for i, s in ((0, 0), (1, result.sizes["set"] - 1)):
        start = offspan.MLP.init(jax.random.key(spec.seeds[i]), 2, 1, width=4, depth=2)
        seen = pool[result.sets.values[s]]
        end = offspan.train(problem, start, seen, optimizer=spec.policy_gradient.transformation(), iterations=40, stop=stop)
        expected = [float(offspan.cost(problem, end.controller, x[None])) for x in pool]
        np.testing.assert_allclose(result.cost.values[i, s], expected, rtol=1e-9)
    for i in range(2):  # in double precision, what the pilot trained is what is trained anew
        np.testing.assert_allclose(result.own_cost.values[i, 1], result.cost.values[i, result.choice.values[i, 1]], rtol=1e-9)
    on_all = offspan.train_batch(
        problem,
        [offspan.MLP.init(jax.random.key(seed), 2, 1, width=4, depth=2) for seed in spec.seeds],
        pool,
        optimizer=spec.policy_gradient.transformation(),
        iterations=40,
        stop=stop,
    )
    found = [float(offspan.cost(problem, controller, pool)) for controller in on_all.controllers]
    least = min(*found, result.cost.values.mean(axis=2).min())
    np.testing.assert_allclose(result.least_cost, [least] * 2, rtol=1e-9)
    own = dict(zip(result.method.values.tolist(), np.isfinite(result.own_cost.values).all(axis=(0, 2)), strict=True))
    assert own == {"farthest": False, "pilot": True}
    made = report(result)
    assert "pilot (own run)" in [row[0] for row in made.tables["table"].rows]
    assert made.tables["tails"].headings[-2:] == ["J from other initial networks", "relative to random, pooled over starts"]


def test_a_comparison_that_was_stopped_resumes_bit_for_bit(network, tmp_path):
    """Stopped while choosing, while training, and while training on all candidates."""
    spec, expected = network

    for share in (0.1, 0.5, 0.95):

        def stop_at(done, share=share):
            if done > share:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            run(spec, tmp_path, stop_at)
    result = run(spec, tmp_path, lambda share: None)
    for name in expected:
        np.testing.assert_array_equal(result[name].values, expected[name].values, err_msg=str(name))


def test_a_run_that_diverged_costs_infinitely_much_whatever_its_last_controller(tmp_path):
    spec = spec_of(tmp_path, LQR)
    runs = Runs.of(spec, np.array([[0, 1]]))
    cost = np.full((1, len(runs.seen), len(runs.pool)), np.nan)
    empty = {"cost": cost, "alignment": cost[..., 0], "coverage": cost[..., 0]}
    codes = np.full(len(runs.seen), offspan.Status.finished, np.int8)
    assert np.all(np.isfinite(_evaluated(spec, runs, runs.starts(), codes, 0, empty)["cost"]))
    codes[1] = offspan.Status.diverged
    assert np.isinf(_evaluated(spec, runs, runs.starts(), codes, 0, empty)["cost"][0]).all(axis=1).tolist() == [False, True, False]


def by_hand() -> xr.Dataset:
    """Three starts of a pendulum and two candidates, one to be chosen; the second set is best, the third start diverges everywhere."""
    J = np.array([[[1.0, 3.0], [1.0, 1.0], [2.0, 2.0]], [[4.0, 4.0], [1.0, 2.0], [np.inf, np.inf]], [[np.inf] * 2] * 3])
    curve = np.stack([np.full((3, 3), 9.0), J.mean(axis=2)], axis=2)
    data = {
        "candidates": (("candidate", "state"), np.eye(2)),
        "sets": (("set", "seen"), [[0], [1], [1]]),
        "is_random": ("set", [True, False, True]),
        "cost": (("seed", "set", "candidate"), J),
        "cost_curve": (("seed", "set", "iteration"), curve),
        "alignment_curve": (("seed", "set", "iteration"), np.ones((3, 3, 2))),
        "coverage_curve": (("seed", "set", "iteration"), np.ones((3, 3, 2))),
        "status": (("seed", "set"), np.where(np.isinf(J.mean(axis=2)), 2, 0)),
        "iterations": (("seed", "set"), np.full((3, 3), 10)),
        "score": (("seed", "set", "criterion"), np.array([[[2.0], [9.0], [1.0]], [[1.0], [9.0], [np.nan]], [[1.0], [9.0], [2.0]]])),
        "choice": (("seed", "method"), [[1], [2], [0]]),
        "rollouts": (("seed", "method"), [[5], [7], [6]]),
        "own_cost": (("seed", "method", "candidate"), np.array([[[1.0, 2.0]], [[2.0, 4.0]], [[np.inf] * 2]])),
        "explores": ("seed", [True, True, True]),
        "least_cost": ("seed", [1.0] * 3),
    }
    attributes = {"kind": "selection", "name": "by-hand", "quick": 0, "problem": "pendulum", "choose": 1, "iterations": 10}
    attributes |= {"pilot_iterations": 10, "pilot_sets": 2}
    coords = {"seed": [0, 1, 2], "method": ["pilot"], "criterion": ["distance"], "iteration": [0, 10]}
    return xr.Dataset(data, coords=coords, attrs=attributes)


def test_tables_of_a_small_result_by_hand():
    """J: random (2, 2), (4, ∞), (∞, ∞); pilot 1, ∞, ∞; own runs 1.5, 3, ∞; best 1, 1.5, ∞."""
    result = by_hand()
    made = report(result)
    rows = {row[0]: row[1:] for row in made.tables["table"].rows}
    assert rows["random"][:2] == ["∞", "∞"]  # sets: (2, 4, ∞) -> 4 and (2, ∞, ∞) -> ∞; between them ∞
    assert rows["pilot"][0] == "∞"
    assert rows["pilot (own run)"][:2] == ["3", "2"]
    assert rows["pilot (own run)"][3] == "6"
    assert rows["best of 3 sets"][:2] == ["1.5", "0.5"]
    assert rows["best of 3 sets"][3] == f"{3 * 10 * 1 + 3 * 2:,}"
    tails = {row[0]: row[1:] for row in made.tables["tails"].rows}
    # own: regret 0.5, 1.5 and 0 where all diverge; worst 2, 4, ∞; good 1.5 <= 1.5 * 1 once in three
    assert tails["pilot (own run)"][:4] == ["0.5", "4", "4", "33%"]
    # sets 1, 2 and 0, of starts 0, 1 and 2, from the other starts: 1.5, ∞; 2, ∞; 2, 4
    assert tails["pilot"][4] == "3"
    (row,) = [row for row in correlations(result) if row.name == "distance"]
    # within start 0 both sets end at 2, a tie; in start 1 the lower cost has the score that is a number; in start 2 both diverge
    assert row.within.value == pytest.approx(1.0)
    assert not [row for row in correlations(result) if "after" in row.name]  # one look, at the end


def test_a_comparison_without_a_finite_or_a_positive_excess_is_drawn():
    for J, expected in ((np.inf, "1.00 [1.00, 1.00]"), (1.0, "1.00 [1.00, 1.00]")):
        result = by_hand()
        result["cost"] = xr.full_like(result.cost, J)
        result["cost_curve"] = xr.full_like(result.cost_curve, J)
        result.attrs |= {"dim": 2, "horizon": 10}
        result.attrs["problem"] = "shift"
        made = report(result)
        assert made.tables["table"].rows[1][2] == expected
        for figure, _ in made.figures().values():
            figure.draw_without_rendering()


def test_presets_of_the_comparison_are_those_of_the_issue_and_the_paper():
    lqr = load_preset("selection-lqr")
    assert isinstance(lqr, SelectionSpec)
    assert (lqr.dim, lqr.horizon, lqr.choose, len(lqr.seeds), lqr.iterations, lqr.policy_gradient.learning_rate) == (
        8,
        8,
        2,
        100,
        20_000,
        3e-4,
    )
    pendulum, quadcopter = load_preset("selection-pendulum"), load_preset("selection-quadcopter")
    assert isinstance(pendulum, SelectionSpec)
    assert isinstance(quadcopter, SelectionSpec)
    for spec, other in ((pendulum, "pendulum"), (quadcopter, "quadcopter-below")):
        assert spec.policy_gradient == load_preset(other).policy_gradient  # pyright: ignore[reportAttributeAccessIssue]
    quick = quadcopter.as_quick()
    assert isinstance(quick, SelectionSpec)
    assert (quick.name, quick.quick, len(quick.seeds), quick.sets, quick.pilot_iterations) == (
        "selection-quadcopter-quick",
        True,
        3,
        12,
        1_000,
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("choose = 2", "choose = 4", "`k` is 4, which leaves nothing unseen, as there are 4 candidates"),
        ("choose = 2", "choose = 2\nquick_iterations = 6", "`quick_iterations` is 6, but must be a multiple of `evaluations`, 4"),
        ("choose = 2", "choose = 1\ncandidates = [[1, 0, 0, 0], [0, 0, 0, 0]]", "`candidates` has a zero state"),
        ('"gradient-descent", learning_rate', '"adam", learning_rate', "the method 'flow' is for an LQR and gradient-descent"),
        ('"adaptive"', '"adaptiv"', "there is no method to compare 'adaptiv' (did you mean 'adaptive'?)"),
        ('"adaptive"', '"exhaustive"', "there is no method to compare 'exhaustive'"),
        ("dim = 4\n", "", "`gaussian` needs `dim` and `horizon`"),
        ("evaluations = 4", "evaluations = 7", "`iterations` is 40, but must be a multiple of `evaluations`, 7"),
        ("choose = 2", "choose = 2\nsets = 5", "`sets` is 5, but all 6 sets of an LQR are trained"),
        ('"gaussian"', '"pendulum"', "a pendulum needs `candidates`"),
        ("choose = 2", "choose = 2\ncandidates = [[1, 2, 3, 4, 5], [1, 0, 0, 0, 0]]", "`candidates` has states of length 5"),
        ("seeds = 3", "seeds = 0", "`seeds`"),
    ],
)
def test_a_comparison_that_makes_no_sense_gets_a_sentence(tmp_path, old, new, message):
    assert old in LQR
    with pytest.raises(ValueError, match=re.escape(message)):
        spec_of(tmp_path, LQR.replace(old, new))


MINE = """
systems = ["mine"]
dim = [3]
horizon = [4]
learning_rate = [0.01]
iterations = 200
matrices.mine.A = [[0.9, 0.2, 0.0], [0.0, 0.8, 0.3], [0.4, 0.0, 0.7]]

[choose]
k = 1
method = "gramian-logdet"
"""


def offspan_command(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "80"})


def test_select_writes_a_spec_that_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(MINE)
    done = offspan_command("select", "mine.toml")
    assert done.exit_code == 0, done.output
    A = np.array([[0.9, 0.2, 0.0], [0.0, 0.8, 0.3], [0.4, 0.0, 0.7]])
    values = []
    for e in np.eye(3):
        states = [np.linalg.matrix_power(A, h) @ e for h in range(4)]
        values.append(np.log(np.linalg.det(np.eye(3) + sum(np.outer(x, x) for x in states))))
    best = int(np.argmax(values))
    written = tomllib.loads(Path("mine-gramian-logdet.toml").read_text())
    assert written["seen_states"] == [np.eye(3)[best].tolist()]
    assert "1 of 3 states by gramian-logdet" in done.output
    assert done.output.index("chosen") < done.output.index("Score: value of the best set")
    assert "Train on them: offspan run mine-gramian-logdet.toml" in done.output
    with pytest.raises(ValueError, match="still to be chosen; `offspan select` writes a spec that runs"):
        cli.app(["run", "mine.toml"], standalone_mode=False)
    ran = offspan_command("run", "mine-gramian-logdet.toml")
    assert ran.exit_code == 0, ran.output
    assert offspan_command("select", "mine.toml").exit_code == 0  # the same again is no conflict
    Path("mine-gramian-logdet.toml").write_text("name = 'other'\n")
    with pytest.raises(ValueError, match="is there already and is no spec that offspan chose"):
        cli.app(["select", "mine.toml"], standalone_mode=False)


def test_select_for_networks_leaves_the_rest_unseen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("swing.toml").write_text("""
kind = "network"
problem = "pendulum"
iterations = 20
width = 4
depth = 2
settings = { horizon = 4 }
policy_gradient = { optimizer = "adam", learning_rate = 1e-2 }
minimal_cost = { optimizer = "adam", learning_rate = 1e-2 }
non_extrapolating = { optimizer = "adam", learning_rate = 1e-2, targets = [[0.0]] }

[choose]
candidates = [[0.0], [1.5], [3.0], [4.5]]
k = 2
method = "farthest"
""")
    done = offspan_command("select", "swing.toml", "--output", "chosen.toml")
    assert done.exit_code == 0, done.output
    spec = load_spec(tmp_path / "chosen.toml")
    assert (spec.name, spec.seen_states, spec.unseen_states) == ("swing-farthest", [[0.0], [3.0]], [[1.5], [4.5]])  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('[choose]\nk = 1\nmethod = "gramian-logdet"', ""), "has no table [choose]"),
        (("dim = [3]", "dim = [3]\nseen = [1]"), "gives `seen`, which is what is to be chosen"),
        (("k = 1", "k = 3"), "`choose.k` is 3, but there are 3 candidates"),
        (("k = 1", "count = 1"), "there is no key 'choose.count'"),
        (("k = 1", "k = 1\nseeed = 2"), "there is no key 'choose.seeed' (did you mean 'seed'?)"),
        (("gramian-logdet", "gramian-logdat"), "there is no method 'gramian-logdat' (did you mean 'gramian-logdet'?)"),
        (("gramian-logdet", "a/b"), "there is no method 'a/b'; there are "),
        (("learning_rate = [0.01]", "learning_rate = [0.01, 0.02]"), "give one of each"),
        (("k = 1", "k = 1\ncandidates = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]"), "`choose.candidates` has a state twice"),
        (("dim = [3]", "dim = 3"), "`dim` is 3, but must be a list of one number here, such as [3]"),
        (("k = 1", "k = 1\ncandidates = [[1.0], [2.0]]"), "`choose.candidates` has states of length 1, but `dim` is [3]"),
    ],
)
def test_a_choice_that_cannot_be_made_gets_a_sentence(tmp_path, monkeypatch, change, message):
    monkeypatch.chdir(tmp_path)
    assert change[0] in MINE
    Path("mine.toml").write_text(MINE.replace(*change))
    with pytest.raises(ValueError, match=re.escape(message)):
        cli.app(["select", "mine.toml"], standalone_mode=False)
