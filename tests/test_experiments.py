"""Specs at the door, runs that nothing can break, and what is on disk."""

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import offspan
from offspan.cli import app
from offspan.experiments import executor
from offspan.experiments.lqr import LQRSpec, distinct_runs
from offspan.experiments.parts import share_of_steps
from offspan.experiments.registry import load_preset, load_spec, preset_names, presets_for, spec_from
from offspan.experiments.run import run
from offspan.experiments.spec import to_toml
from offspan.experiments.store import RunFolder, beside, difference
from offspan.report.results import report

SPEC = """
systems = ["identity", "gaussian"]
dim = [3]
horizon = [3, 4]
seen = [1, 2]
seeds = [7, 8]
learning_rate = [0.01, 0.02]
iterations = 2500
"""


def write(path: Path, text: str = SPEC) -> Path:
    path.write_text(text)
    return path


def ignore(share: float) -> None: ...


@pytest.fixture
def spec(tmp_path):
    return load_spec(write(tmp_path / "small.toml"))


def test_presets_have_the_papers_settings():
    """[R24, app:experiments:details:lqr]; seeds, learning rates and iterations as the paper gives them."""
    lqr = ["lqr", *(f"lqr-{name}" for name in ("horizon-sweep", "horizons", "large", "large-clipped", "long-horizon", "noise"))]
    lqr += ["lqr-random-abq", "lqr-sampled"]
    choices = ["abq", "lqr", "lqr-one", "lqr-short", "lqr-three", "pendulum", "pendulum-velocities", "quadcopter"]
    selection = [f"selection-{name}" for name in choices]
    networks = ["pendulum", "pendulum-horizons", *(f"quadcopter-{name}" for name in ("below", "distance", "further", "noise"))]
    assert preset_names() == [*lqr, *networks, *selection, "shift-regularized"]
    assert presets_for("selection") == selection
    expected = {
        "lqr": (["identity", "shift", "gaussian"], [5], [5], [1, 2, 3, 4], 20, [1e-3], 100_000),
        "lqr-long-horizon": (["identity", "shift", "gaussian"], [5], [8], [1, 2, 3, 4], 20, [1e-3], 100_000),
        "lqr-large": (["identity", "shift", "gaussian"], [40], [40], [1, 10, 20, 30], 10, [1e-4], 200_000),
        "lqr-random-abq": (["gaussian-abq"], [5], [5], [1, 2, 3, 4], 20, [1e-3], 100_000),
    }
    for name, settings in expected.items():
        spec = load_preset(name)
        assert isinstance(spec, LQRSpec)
        assert (spec.systems, spec.dim, spec.horizon, spec.seen, len(spec.seeds), spec.learning_rate, spec.iterations) == settings
        assert spec.precision == "float64"
        assert spec.as_quick().quick
        assert spec.as_quick().iterations < spec.iterations
        if name == "lqr-large":
            assert len(distinct_runs(spec)[0]) == 48


def test_a_result_holds_what_single_runs_give(spec, tmp_path):
    result = run(spec, tmp_path, ignore)
    assert result.K.dims == ("system", "dim", "horizon", "learning_rate", "seen", "seed", "control", "state")
    for system, horizon, rate, seen, seed in [("gaussian", 4, 0.02, 2, 8), ("gaussian", 3, 0.01, 1, 7), ("identity", 3, 0.02, 2, 8)]:
        problem = spec.problem(system, seed, 3, horizon)
        single = offspan.train_lqr(problem, offspan.basis(3, seen), learning_rate=rate, iterations=2500)
        one = result.sel(system=system, dim=3, horizon=horizon, learning_rate=rate, seen=seen, seed=seed)
        np.testing.assert_allclose(one.K, single.K, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(one.cost[:-1], single.cost[one.iteration.values[:-1]], rtol=1e-10)
        measure = offspan.normalized_cost(problem, single.K, offspan.basis(3, seen))
        np.testing.assert_allclose(one.normalized_cost[-1], measure, rtol=1e-9)
        np.testing.assert_array_equal(result.A.sel(system=system, dim=3, seed=seed), problem.A)
    assert result.status.attrs["flag_meanings"] == "finished converged diverged"


def test_what_is_on_disk_opens_with_plain_tools(spec, tmp_path):
    result = run(spec, tmp_path, ignore)
    folder = tmp_path / "small"
    assert sorted(path.name for path in folder.iterdir()) == ["provenance.json", "result.nc", "spec.toml"]
    assert xr.load_dataset(folder / "result.nc", engine="h5netcdf").identical(result)
    assert tomllib.loads((folder / "spec.toml").read_text())["iterations"] == 2500
    provenance = RunFolder(folder).provenance()
    assert provenance["offspan"] == offspan.__version__
    assert provenance["packages"]["jax"] == jax.__version__
    assert provenance["seconds"] > 0


def test_progress_is_told_before_anything_is_made(spec, tmp_path, monkeypatch):
    """Making a hundred thousand systems, and compiling, take a while."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("offspan.experiments.lqr.problems_of", interrupt)
    heard = []
    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path, heard.append)
    assert heard == [0.0]


def test_a_complete_run_is_found_and_not_made_again(spec, tmp_path, monkeypatch):
    result = run(spec, tmp_path, ignore)
    before = (tmp_path / "small" / "result.nc").stat().st_mtime_ns
    again = run(load_spec(tmp_path / "small" / "spec.toml").model_copy(update={"name": "small"}), tmp_path, ignore)
    assert again.identical(result)
    assert (tmp_path / "small" / "result.nc").stat().st_mtime_ns == before


STARTS = """
kind = "starts"
system = "shift"
dim = 3
horizon = 3
control_cost = 0.5
starts = 4
start_std = 0.1
learning_rate = 0.02
iterations = 2500
record_every = 700
"""


def test_many_starts_hold_what_single_runs_give_and_resume_bit_for_bit(tmp_path):
    spec = load_spec(write(tmp_path / "starts.toml", STARTS))
    result = run(spec, tmp_path / "whole", ignore)
    assert result.iteration.values.tolist() == [0, 700, 1400, 2100, 2500]
    problem = offspan.LQR(np.roll(np.eye(3), 1, axis=0), R=0.5 * np.eye(3), horizon=3)
    for start in (0, 3):
        single = offspan.train_lqr(problem, offspan.basis(3, 1), learning_rate=0.02, iterations=2500, K0=result.K[0, start].values)
        np.testing.assert_allclose(result.K[-1, start], single.K, rtol=1e-10, atol=1e-12)
    K = result.K.values
    distances = [[np.sqrt(((K[q, i] - K[q, j]) ** 2).sum()) for i in range(4) for j in range(4)] for q in range(5)]
    np.testing.assert_allclose(result.largest_distance, np.max(distances, axis=1), rtol=1e-12)
    assert (np.diff(result.largest_distance) < 0).all()

    def interrupt(share):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path / "again", interrupt)
    assert RunFolder(tmp_path / "again" / "starts").share_done() == 1400 / 2500
    assert run(spec, tmp_path / "again", ignore).identical(result)


def test_a_start_that_diverges_is_not_dropped(tmp_path):
    result = run(load_spec(write(tmp_path / "wild.toml", STARTS.replace("0.02", "1.0"))), tmp_path, ignore)
    assert (result.status == 2).all()
    assert (result.iterations < 2500).all()
    first = int(result.iterations.min())
    np.testing.assert_array_equal(np.isinf(result.largest_distance), result.iteration > first)
    problem = offspan.LQR(np.roll(np.eye(3), 1, axis=0), R=0.5 * np.eye(3), horizon=3)
    single = offspan.train_lqr(problem, offspan.basis(3, 1), learning_rate=1.0, iterations=2500, K0=result.K[0, 0].values)
    assert result.iterations[0] == single.iterations
    np.testing.assert_allclose(result.K[-1, 0], single.K, rtol=1e-10)


def test_systems_that_ignore_the_seed_are_trained_once(spec):
    runs, place = distinct_runs(spec)
    assert len(runs) == 2 * 2 + 2 * 2 * 2
    assert (place[0, :, :, 0] == place[0, :, :, 1]).all()
    assert len(np.unique(place[1])) == 8


def test_ones_own_matrices_come_from_the_spec_or_a_file(tmp_path):
    A, B = np.array([[0.5, 1.0], [0.0, 0.5]]), np.array([[0.0], [1.0]])
    np.savez(tmp_path / "mine.npz", A=A, B=B)
    settings = 'dim = [2]\nhorizon = [3]\nseen_states = [[1.0, 1.0]]\nlearning_rate = [0.05]\niterations = 50\nsystems = ["mine"]\n'
    from_file = load_spec(write(tmp_path / "file.toml", settings + '[matrices.mine]\nfile = "mine.npz"\n'))
    inline = load_spec(write(tmp_path / "inline.toml", settings + f"[matrices.mine]\nA = {A.tolist()}\nB = {B.tolist()}\n"))
    first, second = run(from_file, tmp_path / "runs", ignore), run(inline, tmp_path / "runs", ignore)
    np.testing.assert_array_equal(first.K, second.K)
    single = offspan.train_lqr(offspan.LQR(A, B, horizon=3), np.array([[1.0, 1.0]]), learning_rate=0.05, iterations=50)
    np.testing.assert_allclose(first.K.squeeze(), np.asarray(single.K).squeeze(), rtol=1e-12)
    assert first.normalized_cost.isnull().all()  # B is not square: no measure is defined, and training is what is told
    made = report(first)
    J = offspan.cost(offspan.LQR(A, B, horizon=3), offspan.Linear(single.K), np.array([[1.0, 1.0]]))
    assert (made.tables["table"].headings[-1], made.tables["table"].rows[0][-1]) == ("J(S)", f"{J:.4g}")
    ((name, (figure, data)),) = made.figures().items()
    assert name == "training"
    assert name in made.captions
    np.testing.assert_allclose(np.asarray(figure.get_axes()[0].lines[0].get_ydata(), float), data.cost)
    assert data.cost.iloc[0] == pytest.approx(float(single.cost[0]))
    stored = load_spec(tmp_path / "runs" / "file" / "spec.toml")
    assert isinstance(stored, LQRSpec)
    assert A.tolist() == stored.matrices["mine"].A


def test_an_interrupted_run_resumes_bit_for_bit(spec, tmp_path):
    whole = run(spec, tmp_path / "whole", ignore)

    def interrupt(share):
        if share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path / "again", interrupt)
    folder = RunFolder(tmp_path / "again" / "small")
    assert not folder.is_complete()
    assert 0.5 < folder.share_done() < 1
    heard = []
    result = run(spec, tmp_path / "again", heard.append)
    assert heard[0] > 0.6
    assert result.identical(whole)
    assert not folder.checkpoints.exists()


SAMPLED = """
kind = "ways"
systems = ["gaussian"]
dim = 3
horizon = [4]
seeds = 3
iterations = 25_000
compare_by = "horizon"
ways = [
  { name = "two points", learning_rate = 1e-3, gradient = "two-point", process_noise = 0.1 },
  { name = "REINFORCE", learning_rate = 1e-3, gradient = "reinforce", discounts = [0.5, 1.0] },
]
"""


@pytest.mark.parametrize("text", [SPEC.replace("iterations = 2500", "iterations = 60000"), SAMPLED], ids=["sweep", "sampled"])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, text):
    """A real process, killed with SIGKILL twice at random moments after its first checkpoint, then left to finish."""
    spec = load_spec(write(tmp_path / "killed.toml", text))
    script = (
        "import sys, jax; jax.config.update('jax_enable_x64', True)\n"
        "from pathlib import Path\nfrom offspan.experiments.run import run\nfrom offspan.experiments.registry import load_spec\n"
        f"spec = load_spec(Path({str(tmp_path / 'killed.toml')!r}))\n"
        f"run(spec, Path({str(tmp_path / 'runs')!r}), lambda share: None, checkpoint_seconds=0.0)\n"
    )
    random = np.random.default_rng(0)
    folder = RunFolder(tmp_path / "runs" / "killed")
    shares = []
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", script])
        before = {path: path.stat().st_mtime_ns for path in folder.checkpoints.glob("*.npz")}
        while process.poll() is None and all(path.stat().st_mtime_ns == before.get(path) for path in folder.checkpoints.glob("*.npz")):
            time.sleep(0.01)
        time.sleep(random.uniform(0.0, 0.5))
        assert process.poll() is None, "the run ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        shares.append(folder.share_done())
    assert 0 < shares[0] < shares[1] < 1
    subprocess.run([sys.executable, "-c", script], check=True)
    whole = run(spec, tmp_path / "whole", ignore)
    assert folder.load_result().identical(whole)


MISTAKES = {
    "an unknown key": (SPEC.replace("seeds", "seads"), "there is no key 'seads' (did you mean 'seeds'?)"),
    "a required key misspelt": (SPEC.replace("iterations", "iteration"), "there is no key 'iteration' (did you mean 'iterations'?)"),
    "a ragged matrix": (
        SPEC.replace('"gaussian"', '"mine"') + "[matrices.mine]\nA = [[1,0,0],[0,1],[0,0,1]]\n",
        "`matrices.mine.A`: has rows of different lengths, [2, 3].",
    ),
    "an unknown system": (SPEC.replace('"gaussian"', '"gausian"'), "there is no system 'gausian' (did you mean 'gaussian'?)"),
    "no iterations": (SPEC.replace("iterations = 2500", ""), "`iterations`: Field required."),
    "a negative learning rate": (SPEC.replace("0.01", "-0.01"), "`learning_rate.0`: Input should be greater than 0 (given: -0.01)."),
    "a number where a list is wanted": (
        SPEC.replace("horizon = [3, 4]", "horizon = 3"),
        "`horizon`: must be a list, in brackets (given: 3).",
    ),
    "a horizon of zero": (SPEC.replace("horizon = [3, 4]", "horizon = [0]"), "`horizon.0`: Input should be greater than 0 (given: 0)."),
    "a value twice": (SPEC.replace("[7, 8]", "[7, 7]"), "`seeds`: has a value twice: [7, 7]"),
    "more seen states than dimensions": (SPEC.replace("seen = [1, 2]", "seen = [4]"), "`seen` asks for 4 basis states"),
    "nothing seen": (SPEC.replace("seen = [1, 2]", ""), "give either `seen`"),
    "no TOML": ("systems = [", "is not a TOML file"),
    "a name that is a path": (
        SPEC + 'name = "../elsewhere"',
        "`name`: must be letters, digits, `.`, `_` and `-`, and begin with a letter or a digit; give the spec a `name`, or rename the file",
    ),
    "matrices that are not asymmetric": (
        SPEC.replace('"gaussian"', '"mine"') + "[matrices.mine]\nA = [[1,0,0],[0,1,0],[0,0,1]]\nQ = [[1,1,0],[0,1,0],[0,0,1]]\n",
        "LQR: `Q` is not symmetric",
    ),
    "a matrix key misspelt": (
        SPEC.replace('"gaussian"', '"mine"') + "[matrices.mine]\nA = [[1,0,0],[0,1,0],[0,0,1]]\nC = [[1]]\n",
        "there is no key 'matrices.mine.C'",
    ),
    "an infinite learning rate": (SPEC.replace("0.01", "inf"), "`learning_rate.0`: Input should be a finite number (given: inf)."),
    "a seed beyond all bounds": (SPEC.replace("[7, 8]", "[99999999999999999999]"), "`seeds.0`: Input should be less than 4294967296"),
    "too many seeds": (SPEC.replace("[7, 8]", "100_001"), "`seeds`: must be 1 to 100,000, or a list (given: 100001)."),
    "zero seeds": (SPEC.replace("[7, 8]", "0"), "`seeds`: must be 1 to 100,000, or a list (given: 0)."),
    "a number in place of a system": ("seen_states = [[1.0]]\nsystem = 3", "`system`: must be a table (given: 3)."),
    "a number in place of matrices": (SPEC + "matrices = 3", "`matrices`: must be a table (given: 3)."),
    "a text in place of a number": (SPEC.replace("0.01", '"0.01"'), "`learning_rate.0`: Input should be a valid number (given: '0.01')."),
    "a truth value in place of a number": (SPEC.replace("0.01", "true"), "Input should be a valid number (given: True)."),
    "a text in place of a truth value": (SPEC + 'quick = "yes"', "`quick`: Input should be a valid boolean (given: 'yes')."),
    "a file of matrices that is a text": (
        SPEC.replace('"gaussian"', '"mine"') + '[matrices.mine]\nfile = "spec.toml"\n',
        "spec.toml is not an .npz file of plain arrays (it is no zip archive).",
    ),
    "no seeds": (SPEC.replace("[7, 8]", "[]"), "`seeds`: List should have at least 1 item"),
    "no seen": (SPEC.replace("seen = [1, 2]", "seen = []"), "`seen`: List should have at least 1 item"),
    "iterations that are a truth value": (SPEC.replace("2500", "true"), "`iterations`: Input should be a valid integer (given: True)."),
    "iterations beyond all bounds": (SPEC.replace("2500", "10000000000000"), "`iterations`: Input should be less than 10000000000"),
    "NaN in a state": (
        SPEC.replace("seen = [1, 2]", "seen_states = [[nan, 0.0, 0.0]]"),
        "`seen_states.0.0`: Input should be a finite number",
    ),
    "matrices with the name of a family": (
        SPEC + "[matrices.gaussian]\nA = [[1,0,0],[0,1,0],[0,0,1]]\n",
        "[matrices.gaussian] has the name of a family of systems; give it another.",
    ),
    "systems with different controls": (
        SPEC.replace('"gaussian"', '"mine"') + "[matrices.mine]\nA = [[1,0,0],[0,1,0],[0,0,1]]\nB = [[1],[0],[0]]\n",
        "the systems have different numbers of controls; give each its own spec.",
    ),
    "a file that is not there": (SPEC.replace('"gaussian"', '"mine"') + '[matrices.mine]\nfile = "mine.npz"\n', "there is no file"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_spec_gets_its_sentence(tmp_path, mistake):
    text, sentence = MISTAKES[mistake]
    with pytest.raises(ValueError, match=r"\.$") as caught:
        load_spec(write(tmp_path / "spec.toml", text))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_stand_for_numbers(tmp_path):
    spec = load_spec(write(tmp_path / "spec.toml", SPEC.replace("0.01", "1")))
    assert spec.digest() == load_spec(write(tmp_path / "spec.toml", SPEC.replace("0.01", "1.0"))).digest()


def test_an_unknown_preset_gets_the_nearest_name():
    with pytest.raises(ValueError, match=r"there is no preset 'lqr-big' \(did you mean 'lqr"):
        load_preset("lqr-big")


def test_a_folder_of_another_spec_is_refused_with_the_difference(spec, tmp_path):
    run(spec, tmp_path, ignore)
    stored = (tmp_path / "small" / "result.nc").read_bytes()
    with pytest.raises(ValueError, match=r"holds a run of another spec \(`iterations` is 2500 there and 100 here\)"):
        run(spec.model_copy(update={"iterations": 100}), tmp_path, ignore)
    assert (tmp_path / "small" / "result.nc").read_bytes() == stored


def test_the_difference_of_two_specs_names_what_only_one_of_them_has():
    stored = load_preset("pendulum")
    given = spec_from({**stored.model_dump(), "settings": {"horizon": 5}}, "test")
    assert difference(stored, given) == "`settings.horizon` is None there and 5 here"
    assert difference(given, stored) == "`settings.horizon` is 5 there and None here"


def test_a_run_is_compared_with_one_of_its_kind_or_with_none(tmp_path):
    """Said before it trains, and by a report, which goes on without it."""
    shutil.copytree(Path(__file__).parents[1] / "docs" / "results" / "shift-regularized", tmp_path / "starts")
    path = write(tmp_path / "small.toml", SPEC + 'compare_with = "starts"')
    said = "small: `compare_with` names starts, a run of the kind starts; name one of the kind lqr, or leave it out."
    assert str(CliRunner().invoke(app, ["run", str(path), "--folder", str(tmp_path)]).exception) == said
    with pytest.raises(offspan.OffspanError) as caught:
        beside(load_spec(path), tmp_path)
    assert str(caught.value) == said
    with pytest.raises(ValueError, match="`compare_with`"):
        load_spec(write(path, path.read_text().replace('"starts"', '"../starts"')))


def test_the_share_that_is_done_counts_simulated_time_steps():
    assert share_of_steps(30, 120, None) == 0.25
    done = [share_of_steps(count, 120, [10, 20, 90]) for count in (0, 40, 60, 80, 120)]
    np.testing.assert_allclose(done, [0, 10 / 120, 20 / 120, 30 / 120, 1])


def test_a_spec_that_never_got_going_does_not_hold_its_folder(spec, tmp_path):
    """After an attempt that failed before any work was done, the corrected spec may have the folder; half-written files are swept up."""
    (tmp_path / "small").mkdir()
    write(tmp_path / "small" / "spec.toml", SPEC.replace("2500", "9"))
    write(tmp_path / "small" / ".offspan-a1b2c3d4.result.nc", "half")
    run(spec, tmp_path, ignore)
    assert RunFolder(tmp_path / "small").spec().digest() == spec.digest()
    assert not list((tmp_path / "small").glob(".*"))


@pytest.mark.parametrize("name", preset_names())
def test_a_spec_is_written_as_it_is_read(name, tmp_path):
    """Whatever its title holds."""
    spec = load_preset(name).model_copy(update={"title": 'a [\n 1,\n 2,\n] "b" # é'})
    path = write(tmp_path / "spec.toml", to_toml(spec))
    assert load_spec(path) == spec
    assert max(len(line) for line in to_toml(load_preset(name)).splitlines()) > 20, "lists are not spread over lines"


def test_a_second_process_in_the_same_folder_is_told_and_touches_nothing(tmp_path):
    """While one process trains, another is started on the same spec; when the first is killed, the folder is free again."""
    path = write(tmp_path / "long.toml", SPEC.replace("iterations = 2500", "iterations = 4000000"))
    command = [sys.executable, "-c", "from offspan.cli import main; main()", "run", str(path), "--folder", str(tmp_path / "runs")]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    folder = RunFolder(tmp_path / "runs" / "long")
    while first.poll() is None and not folder.spec_file.exists():
        time.sleep(0.05)
    try:
        first.send_signal(signal.SIGSTOP)  # so that what is in the folder is the second one's doing
        before = {found: found.stat().st_mtime_ns for found in folder.path.rglob("*")}
        second = subprocess.run(command, capture_output=True, text=True)
        after = {found: found.stat().st_mtime_ns for found in folder.path.rglob("*")}
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 2
    assert "another process is at work in" in second.stderr
    assert "Traceback" not in second.stderr
    assert after == before
    with folder.claimed(load_spec(path)):  # a killed process holds nothing
        pass


def test_a_foreign_folder_is_left_alone(spec, tmp_path):
    (tmp_path / "small").mkdir()
    write(tmp_path / "small" / "thesis.tex", "all of it")
    write(tmp_path / "small" / ".1.keep", "and what it rests on")
    with pytest.raises(ValueError, match="is there already and is not a run of offspan"):
        run(spec, tmp_path, ignore)
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == [".1.keep", "thesis.tex"]


def test_a_run_that_goes_on_with_other_versions_says_so_and_records_both(spec, tmp_path, monkeypatch):
    """Its bits may differ from those of a run with either."""
    longer = spec.model_copy(update={"iterations": 3_000})

    def stop(share: float) -> None:
        if share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(longer, tmp_path, stop)
    ours = executor.versions()
    monkeypatch.setattr(executor, "versions", lambda: {**ours, "jax": "99.0"})
    said: list[str] = []
    run(longer, tmp_path, ignore, executor=executor.Here(say=said.append))
    assert len(said) == 1
    assert f"was begun with offspan {ours['offspan']}, jax {ours['jax']}," in said[0]
    assert "and goes on with" in said[0]
    begun = [place["begun_with"] for place in RunFolder(tmp_path / "small").provenance()["tasks"] if "begun_with" in place]
    assert len(begun) == 1
    assert f"jax {ours['jax']}" in begun[0]


def test_a_finished_run_whose_spec_was_edited_is_refused(spec, tmp_path):
    """Else the page would claim the new settings beside the old numbers. Also for results of 0.1, which carry no digest."""
    run(spec, tmp_path, ignore)
    folder = RunFolder(tmp_path / "small")
    faster = spec.model_copy(update={"learning_rate": [2 * rate for rate in spec.learning_rate]})
    write(folder.spec_file, to_toml(faster))
    with pytest.raises(ValueError, match="is the result of another spec than"):
        run(faster, tmp_path, ignore)
    edited = spec.model_copy(update={"iterations": spec.iterations + 1})
    write(folder.spec_file, to_toml(edited))
    for _ in range(2):
        with pytest.raises(ValueError, match="is the result of another spec than"):
            run(edited, tmp_path, ignore)
        with pytest.raises(ValueError, match="is the result of another spec"):
            folder.load_result()
        older = xr.load_dataset(folder.result_file, engine="h5netcdf").drop_attrs(deep=False)
        kept = {"kind", "name", "title", "iterations", "quick", "precision"}
        attributes = xr.load_dataset(folder.result_file, engine="h5netcdf").attrs
        older.attrs = {key: value for key, value in attributes.items() if key in kept}
        folder.provenance_file.unlink(missing_ok=True)
        folder.result_file.unlink()
        older.to_netcdf(folder.result_file, engine="h5netcdf")
    write(folder.spec_file, to_toml(spec))
    assert folder.load_result().attrs["iterations"] == spec.iterations


def test_a_result_of_another_run_or_with_other_numbers_is_refused(spec, tmp_path):
    """With its provenance copied along, or deleted: the result says itself what it is of, and what is in it."""
    run(spec, tmp_path, ignore)
    other = spec.model_copy(update={"name": "other", "learning_rate": [2 * rate for rate in spec.learning_rate]})
    run(other, tmp_path, ignore)
    ours, theirs = RunFolder(tmp_path / "small"), RunFolder(tmp_path / "other")
    whole = ours.result_file.read_bytes()
    for file in ("result.nc", "provenance.json"):
        (ours.path / file).write_bytes((theirs.path / file).read_bytes())
    with pytest.raises(ValueError, match="is the result of another spec"):
        run(spec, tmp_path, ignore)
    ours.result_file.write_bytes(whole)
    ours.provenance_file.unlink()
    assert (ours.state(), ours.load_result().sizes) == ("complete", theirs.load_result().sizes)
    altered = ours.load_result()
    altered["K"] = altered["K"] + 1e-9
    ours.result_file.unlink()
    altered.to_netcdf(ours.result_file, engine="h5netcdf")
    with pytest.raises(ValueError, match="its numbers do not have the checksum in it"):
        run(spec, tmp_path, ignore)
    assert ours.state() == "damaged"


def test_a_result_cut_short_is_told_and_can_be_made_again(spec, tmp_path):
    result = run(spec, tmp_path, ignore)
    file = tmp_path / "small" / "result.nc"
    whole = file.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 100):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is not the file that the run wrote"):
            run(spec, tmp_path, ignore)
        assert RunFolder(tmp_path / "small").state() == "damaged"
    checkpoint = tmp_path / "small" / "checkpoint" / "dim-3-horizon-3.npz"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"of a process that was killed at the very end")
    (tmp_path / "small" / "provenance.json").unlink()
    for length in (0, 10, len(whole) // 2, len(whole) - 100):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is cut short or no result file"):
            run(spec, tmp_path, ignore)
        assert RunFolder(tmp_path / "small").state() == "damaged"
    assert checkpoint.exists(), "what the result could be made from again was dropped"
    checkpoint.unlink()
    file.unlink()  # as the sentence says
    assert run(spec, tmp_path, ignore).identical(result)


def test_a_checkpoint_cut_short_is_told_and_not_lost(spec, tmp_path):
    def interrupt(share):
        if share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path, interrupt)
    file = tmp_path / "small" / "checkpoint" / "dim-3-horizon-3.npz"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(
        ValueError, match=r"the checkpoint .*dim-3-horizon-3.npz cannot be used .* or move it away to start that task again"
    ):
        run(spec, tmp_path, ignore)
    file.unlink()
    assert run(spec, tmp_path, ignore).identical(run(spec, tmp_path / "whole", ignore))


def test_a_full_disk_is_one_sentence_and_the_checkpoint_stays(spec, tmp_path, monkeypatch):
    """A write of the result that fails halfway for want of space: the run can go on from its checkpoints once there is some."""
    write_bytes = Path.write_bytes

    def full(self, content):
        if "result" in self.name:
            write_bytes(self, content[: len(content) // 2])
            raise OSError(28, "No space left on device", str(self))
        return write_bytes(self, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left on device"):
            run(spec, tmp_path, ignore)
    assert {path.name for path in (tmp_path / "small").iterdir()} == {"spec.toml", "provenance.json", "checkpoint"}
    assert RunFolder(tmp_path / "small").share_done() == 1.0
    assert run(spec, tmp_path, ignore).identical(run(spec, tmp_path / "whole", ignore))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_really_full(tmp_path):
    """A file system of 100 kB, which no checkpoint fits: exit code 2, one sentence, and what was stored before is intact."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)], capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        write(disk / "kept.txt", "stored before")
        text = SPEC.replace("iterations = 2500", "iterations = 30000\nrecord_every = 10")
        command = [sys.executable, "-c", "from offspan.cli import main; main()", "run", str(write(tmp_path / "big.toml", text))]
        done = subprocess.run([*command, "--folder", str(disk / "runs")], capture_output=True, text=True)
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        assert (disk / "kept.txt").read_text() == "stored before"
        assert not list((disk / "runs" / "big").glob(".*")), "half a file was left behind"
    finally:
        subprocess.run(["umount", str(disk)], check=True)
