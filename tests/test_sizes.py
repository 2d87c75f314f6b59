"""Sizes: what a spec takes is estimated before anything is made, what cannot fit is refused in a sentence, and what fits is not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offspan
from offspan.experiments.choosing import choose
from offspan.experiments.estimate import announcement, check_fits, duration
from offspan.experiments.lqr import LQRSpec, distinct_runs, problems_of
from offspan.experiments.registry import FAMILIES, load_preset, load_spec, preset_names
from offspan.experiments.run import run
from offspan.sizes import Rows, blocks, check_memory, free_memory

GIB = 2.0**30
LQR = """
systems = ["gaussian", "shift"]
dim = [3]
horizon = [3]
seen = [1]
seeds = 3
learning_rate = [0.01]
iterations = 100
"""
NETWORK = """
kind = "network"
problem = "pendulum"
seeds = 3
iterations = 100
precision = "float32"
seen_states = [[2.6]]
unseen_states = [[1.5]]
policy_gradient = { optimizer = "adam", learning_rate = 1e-3 }
minimal_cost = { optimizer = "adam", learning_rate = 1e-3 }
non_extrapolating = { optimizer = "adam", learning_rate = 1e-3, targets = [[0.0]] }
"""
SELECTION = """
kind = "selection"
problem = "gaussian"
dim = 4
horizon = 4
choose = 1
iterations = 100
pilot_iterations = 10
methods = ["farthest"]
policy_gradient = { optimizer = "gradient-descent", learning_rate = 1e-3 }
"""
STARTS = """
kind = "starts"
system = "shift"
dim = 3
horizon = 3
starts = 10
start_std = 1.0
learning_rate = 0.01
iterations = 100
"""
WAYS = """
kind = "ways"
systems = ["shift"]
dim = 3
horizon = [3]
iterations = 100
compare_by = "horizon"
ways = [{ name = "plain", learning_rate = 0.01 }]
"""
MANY = ", ".join(map(str, range(1, 101)))
TOO_LARGE = {
    "a dimension": (LQR, "dim = [3]", "dim = [100000]"),
    "a horizon": (LQR, "horizon = [3]", "horizon = [9999999999]"),
    "thousands of dimensions": (LQR, "dim = [3]", f"dim = [{', '.join(map(str, range(1, 3001)))}]"),
    "a product of lists": (LQR, "seeds = 3\nlearning_rate = [0.01]", f"seeds = 100_000\nrecord_every = 1\nlearning_rate = [{MANY}]"),
    "records": (LQR, "iterations = 100", "iterations = 9_999_999_999\nrecord_every = 1"),
    "width": (NETWORK, "iterations = 100", "iterations = 100\nwidth = 1_000_000"),
    "depth": (NETWORK, "iterations = 100", "iterations = 100\ndepth = 1_000_000_000"),
    "a network's horizon": (NETWORK, "iterations = 100", "iterations = 100\nsettings = { horizon = 9999999999 }"),
    "a network's horizon that is no float": (NETWORK, "iterations = 100", f"iterations = 100\nsettings = {{ horizon = {10**400} }}"),
    "a comparison's horizon": (SELECTION, "horizon = 4", "horizon = 9999999999"),
    "starts": (STARTS, "dim = 3", "dim = 100_000"),
    "ways": (WAYS, "horizon = [3]", "horizon = [9999999999]"),
}


def written(tmp_path, text: str) -> Path:
    (tmp_path / "mine.toml").write_text(text)
    return tmp_path / "mine.toml"


@pytest.mark.parametrize("case", TOO_LARGE)
def test_what_cannot_fit_is_refused_with_the_numbers_and_nothing_is_written(tmp_path, case, monkeypatch):
    monkeypatch.setattr("offspan.sizes.free_memory", lambda: 100 * GIB)
    text, old, new = TOO_LARGE[case]
    assert old in text
    run(load_spec(written(tmp_path, text.replace("iterations = 100", "iterations = 20", 1))), tmp_path / "small", lambda share: None)
    with pytest.raises(offspan.OffspanError, match=r"mine: [\d,]+ runs? need about [\d,.]+ GiB, but 100.00 GiB are free; ") as told:
        run(load_spec(written(tmp_path, text.replace(old, new))), tmp_path / "runs", lambda share: None)
    assert str(told.value).count(". ") == 0
    assert not (tmp_path / "runs").exists()


def test_what_does_not_fit_can_be_read_and_shown(tmp_path, monkeypatch):
    """On a machine with little memory, whatever the kind; a comparison's dimension is bounded before anything is made of it."""
    monkeypatch.setattr("offspan.sizes.free_memory", lambda: 0.0)
    for name in preset_names():
        assert load_preset(name).content()
    with pytest.raises(offspan.OffspanError, match=r"`dim`: Input should be less than or equal to 1000 \(given: 100000\)"):
        load_spec(written(tmp_path, SELECTION.replace("dim = 4", "dim = 100_000")))


def test_what_nobody_waits_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("offspan.sizes.free_memory", lambda: 100 * GIB)
    text = LQR.replace("iterations = 100", "iterations = 9_999_999_999\nrecord_every = 999_999_999").replace("seeds = 3", "seeds = 10_000")
    text = text.replace("dim = [3]", "dim = [30]").replace("horizon = [3]", "horizon = [1000]")
    with pytest.raises(offspan.OffspanError, match=r"would take about [\d,]+ years here"):
        check_fits(load_spec(written(tmp_path, text)))


def test_a_choice_that_cannot_fit_is_refused(tmp_path):
    text = LQR.replace("seen = [1]\nseeds = 3", "").replace('"gaussian", ', "").replace("horizon = [3]", "horizon = [9999999999]")
    with pytest.raises(offspan.OffspanError, match=r"runs? need about [\d,]+ GiB"):
        choose(written(tmp_path, text + '[choose]\nk = 1\nmethod = "farthest"\n'))


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_fits_four_gigabytes_and_is_worth_waiting_for(name, monkeypatch):
    monkeypatch.setattr("offspan.sizes.free_memory", lambda: 3.5 * GIB)
    found = check_fits(load_preset(name))
    assert found is not None
    assert 0 < found.memory < 1 * GIB
    assert found.runs >= 15


def test_large_runs_are_announced_and_small_ones_are_not(tmp_path):
    assert announcement(load_spec(written(tmp_path, LQR))) is None
    large = load_spec(written(tmp_path, LQR.replace("seeds = 3", "seeds = 10_000").replace("iterations = 100", "iterations = 10_000_000")))
    said = announcement(large.model_copy(update={"record_every": 10**6}))
    assert said is not None
    assert said.startswith("mine: 10,001 runs, about ")
    assert [duration(seconds) for seconds in (0.2, 70, 600, 4e5, 1e9)] == ["1 second", "70 seconds", "10 minutes", "5 days", "32 years"]


MEASURED = """
import json, re, sys
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)
from pathlib import Path
from offspan.experiments.registry import load_spec
from offspan.experiments.run import run
# Of this process alone; `ru_maxrss` begins with what its parent had.
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
small, spec = (load_spec(Path(path)) for path in sys.argv[1:3])
run(small, Path(sys.argv[3]), lambda share: None)  # all that is loaded once
before = peak()
run(spec, Path(sys.argv[3]), lambda share: None)
print(json.dumps([peak() - before, spec.estimate().memory]))
"""
LARGE = {
    "many runs": (LQR, LQR.replace("seeds = 3", "seeds = 40_000").replace("iterations = 100", "iterations = 200")),
    "a long horizon": (LQR, LQR.replace("horizon = [3]", "horizon = [600_000]").replace("iterations = 100", "iterations = 1")),
    "large matrices": (LQR, LQR.replace("dim = [3]", "dim = [500]").replace("iterations = 100", "iterations = 1")),
    "many networks": (
        NETWORK.replace("iterations = 100", "iterations = 2"),
        NETWORK.replace("iterations = 100", "iterations = 2").replace("seeds = 3", "seeds = 1000"),
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.sweep if case.startswith("many") else ()) for case in LARGE])
def test_the_estimate_is_what_a_process_takes_within_a_factor_of_two(tmp_path, case):
    """More than is announced is an error of the estimate, too; a process takes at most twice and at least half of it."""
    for name, text in zip(("small", "large"), LARGE[case], strict=True):
        (tmp_path / f"{name}.toml").write_text(text)
    command = [sys.executable, "-c", MEASURED, *(str(tmp_path / name) for name in ("small.toml", "large.toml", "runs"))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": ""})
    assert done.returncode == 0, done.stderr
    used, estimated = json.loads(done.stdout)
    assert used > 1e8  # else the process itself is what is measured
    assert used / 2 < estimated < 2 * used


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_systems_made_by_the_thousand_are_those_made_one_by_one_bit_for_bit(precision):
    options = {"name": "mine", "dim": [4], "horizon": [3], "seen": [1], "learning_rate": [0.1], "iterations": 1, "precision": precision}
    spec = LQRSpec(systems=["gaussian", "gaussian-abq", "shift"], seeds=[*range(1_005), 2**32 - 1], **options)
    with jax.enable_x64(precision == "float64"):
        runs = distinct_runs(spec)[0]
        assert len(runs) == 2 * 1_006 + 1
        found = dict(zip(runs, problems_of(spec, runs, 4, 3), strict=True))
        for r, wanted in found.items():
            if r.seed in (0, 7, 999, 1_000, 1_004, 2**32 - 1):
                one = jax.tree.map(lambda M: np.asarray(M, precision), spec.problem(r.system, r.seed, 4, 3))
                assert all(np.array_equal(getattr(one, M), getattr(wanted, M)) for M in "ABQR")


def test_random_systems_are_made_by_the_thousand(monkeypatch):
    """One by one, a hundred thousand of them take more than a minute."""
    made, gaussian = [], FAMILIES["gaussian"]
    monkeypatch.setitem(FAMILIES, "gaussian", gaussian._replace(make=lambda *given: made.append(given) or gaussian.make(*given)))
    options = {"name": "mine", "dim": [4], "horizon": [3], "seen": [1], "learning_rate": [0.1], "iterations": 1}
    spec = LQRSpec(systems=["gaussian"], seeds=2_500, **options)  # pyright: ignore[reportArgumentType]
    assert len(problems_of(spec, distinct_runs(spec)[0], 4, 3)) == 2_500
    assert 1 <= len(made) <= 3


def test_networks_made_at_once_are_those_made_one_by_one_bit_for_bit(tmp_path):
    spec = load_spec(written(tmp_path, NETWORK))
    with jax.enable_x64(False):
        problem, seeds = spec.make_problem(), [0, 3, 2**32 - 1]  # pyright: ignore[reportAttributeAccessIssue]
        for seed, found in zip(seeds, spec.first_controllers(problem, seeds), strict=True):  # pyright: ignore[reportAttributeAccessIssue]
            one = spec.first_controller(problem, seed)  # pyright: ignore[reportAttributeAccessIssue]
            assert jax.tree.structure(one) == jax.tree.structure(found)
            assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(found), strict=True))


def test_a_map_in_blocks_is_the_map(monkeypatch):
    problem, controller = offspan.Pendulum(horizon=5), offspan.Linear([[-1.0, 0.3]])
    axes = {0: jnp.linspace(0, 1, 7), 1: jnp.linspace(-1, 1, 5)}
    far = lambda x: x[0] > 0.3  # noqa: E731
    whole = [
        offspan.extrapolation_map(problem, controller, axes).values,
        offspan.extrapolation_map(problem, controller, axes, success=far).values,
    ]
    monkeypatch.setattr("offspan.sizes.TRAJECTORIES", 6 * 3 * 4)  # four states
    found = [
        offspan.extrapolation_map(problem, controller, axes).values,
        offspan.extrapolation_map(problem, controller, axes, success=far).values,
    ]
    np.testing.assert_allclose(found[0], whole[0], rtol=1e-12)
    np.testing.assert_array_equal(found[1], whole[1])
    assert 0 < found[1].mean() < 1
    assert len(blocks(35, 6 * 3)) == 9


def test_the_costs_of_pilots_and_flows_in_blocks_are_the_costs(monkeypatch):
    problem, e = offspan.gaussian(jax.random.key(0), 5, horizon=4), offspan.sphere(jax.random.key(1), 9, 5)
    import optax

    options: dict[str, Any] = {"key": jax.random.key(2), "optimizer": optax.sgd(1e-2), "iterations": 30, "sets": 6}
    methods = ("flow", "pilot")
    whole = [offspan.select(problem, e, 2, method=method, **options) for method in methods]
    monkeypatch.setattr("offspan.sizes.TRAJECTORIES", 500)
    monkeypatch.setattr("offspan.sizes.NUMBERS", 7)
    for one, found in zip(whole, [offspan.select(problem, e, 2, method=method, **options) for method in methods], strict=True):
        assert np.array_equal(found.indices, one.indices)
        np.testing.assert_allclose(found.scores, one.scores, rtol=1e-9, atol=1e-12)
        assert found.rollouts == one.rollouts


def test_rows_are_made_in_blocks_and_kept_where_they_fit(monkeypatch):
    made = []

    def make(which: np.ndarray) -> np.ndarray:
        made.append(len(which))
        return np.stack([which, which**2], axis=1)

    monkeypatch.setattr("offspan.sizes.NUMBERS", 6)
    for free, again in ((1e9, 0), (0.0, 4)):
        monkeypatch.setattr("offspan.sizes.free_memory", lambda free=free: free)
        rows = Rows(make, 10, 2)
        for _ in range(2):
            made.clear()
            np.testing.assert_array_equal(
                np.concatenate([found for _, found in rows]), np.stack([np.arange(10), np.arange(10) ** 2], axis=1)
            )
        assert len(made) == again
        assert set(made) <= {3}  # one shape, so that one program serves them
        np.testing.assert_array_equal(rows[np.array([9, 0])], [[9, 81], [0, 0]])


def test_the_free_memory_is_known_here():
    assert 1e8 < free_memory() < 1e14
    check_memory("one number", 8, "nothing")
    with pytest.raises(offspan.OffspanError, match=r"^three numbers need about 24.00 GiB, but 1.00 GiB are free; take two\.$"):
        check_memory("three numbers", 24 * GIB, "take two", limit=GIB)
