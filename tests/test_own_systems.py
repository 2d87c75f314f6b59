"""One spec of a system of one's own serves `run`, `map`, `audit` and `select`, whatever the system is; its code runs only when trusted."""

import contextlib
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import offspan
from offspan.cli import app
from offspan.experiments import system
from offspan.experiments.auditing import KeptParts, audit_file, kept_parts
from offspan.experiments.mapping import map_of_run
from offspan.experiments.registry import load_spec
from offspan.experiments.store import RunFolder
from offspan.memory import traits
from offspan.suggestions import expected_gain

EXAMPLES = Path(__file__).parent.parent / "examples"
MODULE = """
import pathlib
import numpy as np
import offspan

with (pathlib.Path(__file__).parent / "imported").open("a") as file:
    file.write("x")

def make(reward=0.0):
    return offspan.BlackBox(
        lambda X, U: X + 0.3 * np.stack([X[:, 1], U[:, 0] + np.sin(X[:, 0])], axis=1), lambda X, U: np.sum(X**2, axis=1) - reward,
        state_dim=2, control_dim=1, horizon=8, coordinates=("angle [rad]", "rate [rad/s]"))

def rewarded():
    return make(reward=100.0)

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
    starts = [offspan.MLP.init(jax.random.key(seed), 2, 1, width=6, depth=2, activation="tanh") for seed in range(3)]
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


def test_a_map_shows_what_the_spec_calls_a_success(own):
    """By the ends of plain loops; twice a negative cost is no limit, so that a map of rewards alone says nothing of success."""
    (own / "swing.toml").write_text(SPEC + "[success]\n0 = [-0.7, 0.3]\n")
    (own / "paid.toml").write_text(SPEC.replace("own_plant:make", "own_plant:rewarded"))
    runs = own / "runs"
    for name in ("swing", "paid"):
        assert invoke("run", own / f"{name}.toml", "--trust-code", "--folder", runs)[0] == 0
    made = map_of_run(RunFolder(runs / "swing"), None, points=7, margin=0.0, trust_code=True)
    controller = system.shown_controller(load_spec(own / "swing.toml", trust_code=True), RunFolder(runs / "swing").load_result())  # pyright: ignore[reportArgumentType]

    def end(x):
        for _ in range(8):
            u = float(controller(jnp.asarray(x))[0])
            x = x + 0.3 * np.array([x[1], u + np.sin(x[0])])
        return x

    ends = [[end(np.array([a, b]))[0] for b in np.linspace(-1, 1, 7)] for a in np.linspace(-1.5, 1.5, 7)]
    expected = np.abs(np.array(ends) + 0.2) <= 0.5
    assert 0 < expected.mean() < 1
    assert made.success is not None
    np.testing.assert_array_equal(made.success.values, expected)
    assert made.criterion == "succeed (at the end, angle [rad] in [-0.7, 0.3])"
    assert map_of_run(RunFolder(runs / "paid"), None, points=3, margin=0.0, trust_code=True).success is None
    code, said = invoke("map", own / "paid.toml", "--points", 3, "--trust-code", "--folder", runs)
    assert code == 0, said


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
    assert f"names code, 'own_plant:make' in {own}, which would run with all your rights; if you trust it, say --trust-code" in said
    assert not (own / "imported").exists()
    assert command == "map" or not (own / "runs" / "swing").exists()  # nothing was begun


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
        shutil.rmtree(own / "runs", ignore_errors=True)
        assert invoke("audit", own / "swing.toml", "--trust-code", "--folder", own / "runs")[0] == 0


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


def audited_file(path: Path, **options: Any) -> tuple[offspan.Audit, int]:
    """What is found, and how many batches of states were judged for it."""
    found: list[offspan.Audit] = []
    with pytest.MonkeyPatch.context() as patch:
        calls = []
        module = sys.modules["offspan.audit"]
        patch.setattr(module, "outcomes", lambda *given, original=module.outcomes: calls.append(1) or original(*given))
        audit_file(path, path.parent / "runs", lambda spec, one: found.append(one), trust_code=True, **options)
    return found[0], len(calls)


@pytest.mark.parametrize("stop_at", [2, 4, 8])
def test_an_audit_that_was_stopped_continues_with_what_it_has(own, stop_at):
    """From the file: parts that were done are not made again, progress never falls, and the outcome is bit for bit the same."""
    spec, kept = own / "swing.toml", own / "runs" / ".audit-swing"
    spec.write_text(SPEC.replace("own_plant:make", "own_plant:with_controller"))
    shares: list[float] = []

    def progress(share):
        shares.append(share)
        if len(shares) == stop_at:
            raise StoppedError

    with pytest.raises(StoppedError):
        audited_file(spec, progress=progress)
    assert list(kept.glob("*.npz"))
    again, fewer = audited_file(spec, progress=lambda share: shares.append(share))
    assert not kept.exists()
    whole, all_of_them = audited_file(spec)
    assert fewer < all_of_them == 6  # the seen states and their limit, drawn states and a map of each controller
    assert shares[stop_at:] == sorted(shares[stop_at:])
    assert shares[-1] == 1
    assert whole.retrained is not None
    for ours, theirs in ((again.outcome, whole.outcome), (again.retrained, whole.retrained)):
        np.testing.assert_array_equal(ours.costs, theirs.costs)  # pyright: ignore[reportOptionalMemberAccess]
        np.testing.assert_array_equal(ours.maps[0][0].values, theirs.maps[0][0].values)  # pyright: ignore[reportOptionalMemberAccess]


def test_nothing_is_lost_where_the_page_cannot_be_written(own):
    spec = own / "swing.toml"
    spec.write_text(SPEC.replace("own_plant:make", "own_plant:with_controller"))

    def fail(*_):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        audit_file(spec, own / "runs", fail, trust_code=True)
    assert audited_file(spec)[1] == 1  # the limit alone
    code, said = invoke("audit", spec, "--trust-code", "--output", own)
    assert code != 0
    assert "is there already and is no page of offspan" in said


def test_parts_of_another_spec_or_damaged_are_made_again(tmp_path):
    folder = tmp_path / "runs" / ".audit-x"
    folder.mkdir(parents=True)
    ours = KeptParts(folder, "ours")
    ours["a"] = {"values": np.arange(3.0)}
    assert ours.get("a")["values"].tolist() == [0, 1, 2]
    assert KeptParts(folder, "others").get("a") is None
    (folder / "a.npz").write_bytes(b"PK spoilt")
    assert KeptParts(folder, "ours").get("a") is None
    (folder / "mine.txt").write_text("not an audit's")
    with kept_parts(folder, "ours") as parts:
        parts["b"] = {"values": np.zeros(1)}
        with pytest.raises(offspan.OffspanError, match="another process is at work"), kept_parts(folder, "ours"):
            pass
    assert {path.name for path in folder.iterdir()} == {"a.npz", "mine.txt"}


@pytest.mark.parametrize("goes_wrong", [False, True])
@pytest.mark.parametrize("was_there", [False, True])
def test_an_audit_leaves_no_empty_folder_of_its_own_and_removes_none_of_others(tmp_path, was_there, goes_wrong):
    runs = tmp_path / "results" / "runs"
    if was_there:
        runs.mkdir(parents=True)
    with pytest.raises(KeyError) if goes_wrong else contextlib.nullcontext(), kept_parts(runs / ".audit-x", "ours") as parts:
        if goes_wrong:
            raise KeyError
        parts["map"] = {"x": np.zeros(1)}
    assert [path.name for path in tmp_path.rglob("*")] == (["results", "runs"] if was_there else [])


def test_a_memory_belongs_to_one_audit():
    memory: dict[str, Any] = {}
    plant, region = offspan.identity(2, horizon=3), {0: (-1.0, 1.0), 1: (-1.0, 1.0)}
    options: dict[str, Any] = {"success": lambda x: x[0] < 0.5, "states": 20, "points": 3, "memory": memory}
    first = offspan.audit(plant, offspan.Linear(jnp.zeros((2, 2))), jnp.eye(2)[:1], region, **options)
    again = offspan.audit(plant, offspan.Linear(jnp.zeros((2, 2))), jnp.eye(2)[:1], region, **options)
    np.testing.assert_array_equal(first.outcome.costs, again.outcome.costs)
    with pytest.raises(offspan.OffspanError, match="made with other arguments"):
        offspan.audit(plant, offspan.Linear(-jnp.eye(2)), jnp.eye(2)[:1], region, **options)


LIMIT = 0.5
LIMITS = dataclasses.make_dataclass("LIMITS", ["angle"])


def below(limit):
    return lambda x: x[0] < limit


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"reference": offspan.Linear(-np.eye(2))}, {"reference": offspan.Linear(-0.5 * np.eye(2))}),
        ({"reference": offspan.Linear(-np.eye(2))}, {"reference": lambda x: -x}),
        ({"reference": lambda x: -x}, {"reference": lambda x: -0.5 * x}),
        ({"success": lambda x: x[0] < 0.5}, {"success": lambda x: x[1] < 0.5}),
        ({"success": below(0.5)}, {"success": below(0.25)}),
        ({"retrain": {"optimizer": optax.sgd(0.1), "iterations": 1}}, {"retrain": {"optimizer": optax.sgd(0.1), "iterations": 2}}),
        ({"retrain": {"optimizer": optax.sgd(0.1), "iterations": 1}}, {"retrain": {"optimizer": optax.sgd(0.2), "iterations": 1}}),
    ],
)
def test_a_memory_tells_references_criteria_and_trainings_apart(first, second):
    """It gave the parts of the first audit to the second."""
    first, second = (list(traits([None, one])) for one in (first, second))
    assert first != second


def test_a_memory_compares_functions_by_what_they_say_and_read(monkeypatch):
    options: dict[str, Any] = {"states": 20, "points": 3, "reference": offspan.Linear(-np.eye(2)), "memory": {}}
    given = offspan.identity(2, horizon=3), offspan.Linear(jnp.zeros((2, 2))), jnp.eye(2)[:1], {0: (-1.0, 1.0)}
    offspan.audit(*given, **options)
    with pytest.raises(offspan.OffspanError, match="made with other arguments"):
        offspan.audit(*given, **options, success=below(0.5))
    assert list(traits(below(0.5))) == list(traits(below(0.5)))
    reads = lambda x: x[0] < LIMIT  # noqa: E731
    before = list(traits(reads))
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 0.25)
    assert list(traits(reads)) != before

    def again(x):
        return again(x)

    assert list(traits(again))
    read = {"limit": 0.5}
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", read)
    nested = lambda x: [one < LIMIT["limit"] for one in x]  # noqa: E731  # pyright: ignore
    before = list(traits(nested))
    read["limit"] = 0.25
    assert list(traits(nested)) != before
    found = [before]
    for value in ("a word", frozenset({1}), LIMITS(0.5)):
        monkeypatch.setattr(sys.modules[__name__], "LIMIT", value)
        assert list(traits(nested)) not in found
        found.append(list(traits(nested)))
    assert list(traits([[1], 2])) != list(traits([[1, 2]]))

    def of_a_variable_without_a_value():
        return later

    assert list(traits(of_a_variable_without_a_value))
    later = 1
    plants = [
        offspan.FunctionProblem(lambda x, u, a=a: a * x + u, lambda x, u: x @ x, state_dim=2, control_dim=2, horizon=3) for a in (1, 2)
    ]
    assert list(traits(plants[0])) != list(traits(plants[1]))
    assert list(traits(plants[0])) == list(traits(plants[0]))


def test_a_model_or_module_that_changed_is_another_experiment(own):
    shutil.copy(EXAMPLES / "cartpole.xml", own)
    text = SPEC.replace('factory = "own_plant:make"', 'mujoco = "cartpole.xml"\nhorizon = 5').replace("iterations = 12", "iterations = 2")
    text = text.replace("horizons = [4]\n", "").replace("[retrain]\niterations = 3\nlearning_rate = 0.01\n", "")
    (own / "cart.toml").write_text(text)
    runs = ("--folder", own / "runs")
    assert invoke("run", own / "cart.toml", *runs)[0] == 0
    model = (own / "cartpole.xml").read_text()
    (own / "cartpole.xml").write_text(model + "<!-- heavier -->")
    assert "holds a run of another spec (the file that `system` names has changed since)" in invoke("run", own / "cart.toml", *runs)[1]
    assert "has changed since the run began" in invoke("map", "cart", *runs)[1]
    assert "holds a run of another spec" in invoke("audit", own / "cart.toml", *runs)[1]
    (own / "cartpole.xml").write_text(model)
    assert invoke("audit", own / "cart.toml", *runs)[0] == 0


def test_a_model_may_lie_anywhere(own, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("models") / "cartpole.xml"
    shutil.copy(EXAMPLES / "cartpole.xml", elsewhere)
    text = SPEC.replace('factory = "own_plant:make"', f'mujoco = "{elsewhere}"\nhorizon = 5')
    (own / "cart.toml").write_text(text)
    before = getattr(load_spec(own / "cart.toml"), "system").fingerprint  # noqa: B009
    elsewhere.write_text(elsewhere.read_text() + "<!-- heavier -->")
    assert "" != before != getattr(load_spec(own / "cart.toml"), "system").fingerprint  # noqa: B009


@pytest.mark.parametrize(
    ("named", "file"),
    [
        ('factory = "plant:make"', "plant/__init__.py"),
        ('factory = "plant.models:make"', "plant/constants.py"),
        ('gymnasium = "rooms:Mine-v0"\nhorizon = 5', "rooms.py"),
        ('gymnasium = "Pendulum-v1"\nhorizon = 5', None),
        ('factory = ":make"', None),
        ('factory = "/:make"', None),
    ],
)
def test_the_code_that_a_system_names_has_a_fingerprint(tmp_path, named, file):
    (tmp_path / "plant").mkdir()
    for name in ("plant/__init__.py", "plant/constants.py", "plant/models.py", "rooms.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "swing.toml").write_text(SPEC.replace('factory = "own_plant:make"', named))
    of_spec = lambda: getattr(load_spec(tmp_path / "swing.toml"), "system").fingerprint  # noqa: B009, E731
    before = of_spec()
    assert bool(before) == (file is not None)
    if file is not None:
        (tmp_path / file).write_text("changed = 1")
        assert of_spec() != before


def test_what_only_an_audit_asks_for_may_change_after_a_run(own):
    runs = ("--trust-code", "--folder", own / "runs")
    assert invoke("run", own / "swing.toml", *runs)[0] == 0
    (own / "swing.toml").write_text(SPEC.replace("0 = [-1.5, 1.5]", "0 = [-0.5, 0.5]"))
    assert invoke("run", own / "swing.toml", *runs)[0] == 0
    assert invoke("map", own / "swing.toml", "--points", 2, *runs)[0] == 0
    drawn = np.loadtxt(own / "runs" / "swing" / "figures" / "map-0-1.csv", delimiter=",", skiprows=1)
    assert set(drawn[:, 0]) == {-0.5, 0.5}
    assert "angle [rad] in [-0.5, 0.5]" in invoke("audit", own / "swing.toml", *runs)[1]
    (own / "swing.toml").write_text(SPEC.replace("iterations = 12", "iterations = 13"))
    for command in ("map", "audit"):
        assert "holds a run of another spec" in invoke(command, own / "swing.toml", *runs)[1]


def test_a_stored_run_cannot_bring_code_into_an_audit(own):
    """Another run's spec names an environment "module:id": it is not imported without leave."""
    text = SPEC.replace('factory = "own_plant:make"', 'gymnasium = "Pendulum-v1"\nhorizon = 8').replace(
        'activation = "tanh"', 'activation = "tanh"\nobservation = true'
    )
    (own / "gym.toml").write_text(text.replace("iterations = 12", "iterations = 2").replace("horizons = [4]", "clip = 1.0"))
    runs = ("--folder", own / "runs")
    code, said = invoke("run", own / "gym.toml", *runs)
    assert code == 0, said
    code, said = invoke("audit", own / "gym.toml", *runs)
    assert code == 0, said
    (own / "other.toml").write_text(text + '[controller]\nrun = "runs/gym"\n')
    code, said = invoke("audit", own / "other.toml", *runs)
    assert code == 0, said
    stored = own / "runs" / "gym" / "spec.toml"
    stored.write_text(stored.read_text().replace("Pendulum-v1", "own_plant:Pendulum-v1"))
    (own / "elsewhere" / "own_plant.py").write_text(MODULE)
    code, said = invoke("audit", own / "other.toml", *runs)
    assert code != 0
    assert "is the result of another spec than spec.toml beside it" in said
    assert not list(own.rglob("imported"))


def test_a_controller_keeps_the_bounds_that_it_was_trained_with(own):
    (own / "own_plant.py").write_text(MODULE.replace("horizon=8", "horizon=8, control_bounds=(-0.5, 0.5)"))
    runs = ("--trust-code", "--folder", own / "runs")
    assert invoke("run", own / "swing.toml", *runs)[0] == 0
    text = SPEC.replace('factory = "own_plant:make"', 'problem = "pendulum"')
    (own / "other.toml").write_text(
        text.replace("[region]", '[controller]\nrun = "runs/swing"\n[region]').replace("[4]", "[4]\nclip = 1.0")
    )
    found = audited_file(own / "other.toml")[0]
    assert isinstance(found.outcome.controller, offspan.Bounded)
    assert np.all(np.abs(np.asarray([found.outcome.controller(jnp.array([5.0 * i, 0.0])) for i in range(5)])) <= 0.5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the plant
def test_a_run_whose_seeds_all_diverge_is_reported(own):
    (own / "swing.toml").write_text(SPEC.replace("learning_rate = 0.05", "learning_rate = 1e300"))
    code, said = invoke("run", own / "swing.toml", "--trust-code", "--folder", own / "runs")
    assert code == 0, said
    assert said.count("diverged") == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"own_plant:make"', '"own_plant:make"\nhorizon = 9', "`system.horizon` has no effect where `system` names a factory"),
        ('"own_plant:make"', '"own_plant:make"\ntarget = [0.0]', "`system.target` has no effect"),
        (
            'factory = "own_plant:make"',
            'mujoco = "cartpole.xml"\nhorizon = 5\ntarget = [0.0]',
            "`system.target` has 1 numbers, but a state",
        ),
        ("horizons = [4]", "horizons = [4, 50]", "`horizons` is (4, 50, 8), but must end with the problem's, 8"),
        ("0 = [-1.5, 1.5]", "angle = [-1.5, 1.5]", "has an entry 'angle', but coordinates are numbers"),
        ("0 = [-1.5, 1.5]", '"²" = [-1.5, 1.5]', "has an entry '²', but coordinates are numbers"),
        ("0 = [-1.5, 1.5]", "0 = [-1.5, 1.5]\n00 = [-1, 1]", "has an entry '00', but coordinates are numbers"),
        ("0 = [-1.5, 1.5]", "7 = [-1.5, 1.5]", "`region` has an entry '7', but coordinates are 0 to 1"),
        ("[[0.5, 0.0], [-0.4, 0.1]]", "[[0.5, 0.0, 1.0]]", "`seen_states`: [0.5, 0.0, 1.0] has 3 numbers, but a state of the system has 2"),
        (
            'activation = "tanh"',
            'activation = "tanh"\nobservation = true',
            "`network.observation` is what an environment of Gymnasium shows",
        ),
        ('activation = "tanh"', 'activation = "tnah"', "there is no activation 'tnah' (did you mean 'tanh'?)"),
        ("own_plant:make", "own_plant:gone", "own_plant has no such function"),
        ("own_plant:make", "no_such_plant:make", "there is no module 'no_such_plant'"),
        ("own_plant:make", "own_plant.inner:make", "there is no module 'own_plant.inner'"),
        ("own_plant:make", "json.no_such:make", "there is no module 'json.no_such'"),
        ("own_plant:make", ".own_plant:make", "there is no module '.own_plant'"),
        ("own_plant:make", ":make", "there is no module ''"),
        ("own_plant:make", "own_plant:np", "own_plant has no such function"),
    ],
)
def test_a_mistake_in_the_spec_is_one_sentence(own, old, new, said):
    assert old in SPEC
    shutil.copy(EXAMPLES / "cartpole.xml", own)
    (own / "swing.toml").write_text(SPEC.replace(old, new))
    run = invoke("run", own / "swing.toml", "--trust-code", "--folder", own / "runs")
    code, message = (
        run if "region" not in said or "angle" in new else invoke("map", own / "swing.toml", "--trust-code", "--folder", own / "runs")
    )
    assert code != 0
    assert said in message


def test_candidates_of_the_wrong_size(own):
    (own / "swing.toml").write_text(without_states() + "[choose]\nk = 1\ncandidates = [[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]\n")
    assert "has 3 numbers, but a state of the system has 2" in invoke("select", own / "swing.toml", "--trust-code")[1]


@pytest.mark.parametrize("kind", ["starts", "lqrr", ["lqr"]])
def test_states_are_chosen_for_some_kinds_alone(own, kind):
    (own / "swing.toml").write_text(f"kind = {kind!r}\n{without_states()}[choose]\nk = 1\ncandidates = [[1.0, 2.0], [0.0, 1.0]]\n")
    said = invoke("select", own / "swing.toml")[1]
    assert f"states are chosen for specs of the kinds lqr, network, system, but `kind` is {kind!r}." in said


def test_a_factory_may_import_what_lies_beside_it(own):
    (own / "own_helper.py").write_text("HORIZON = 8\n")
    (own / "own_plant.py").write_text(MODULE.replace("horizon=8", "horizon=__import__('own_helper').HORIZON"))
    code, said = invoke("run", own / "swing.toml", "--trust-code", "--folder", own / "runs")
    assert code == 0, said
    assert str(own) not in sys.path


def test_an_environment_on_several_processes_gives_the_same_bits():
    code = """
import os, signal, numpy as np, jax, offspan
jax.config.update("jax_enable_x64", True)
from offspan.systems import gymnasium
if __name__ == "__main__":
    one, two = (gymnasium.from_gymnasium("Pendulum-v1", horizon=12, processes=p) for p in (1, 2))
    X, pi = np.random.default_rng(0).uniform(-3, 3, (9, 2)), offspan.Linear([[-3.0, -1.0]])
    for some in (X, X[:1]):
        print(np.array_equal(offspan.costs(one, pi, some), offspan.costs(two, pi, some)))
    os.kill(next(iter(gymnasium._pools.values()))._processes.copy().popitem()[0], signal.SIGKILL)
    try:
        for shift in range(1, 10_000):  # the other process may serve alone until the end of this one is noticed
            offspan.costs(two, pi, X + shift)
    except offspan.OffspanError as error:
        print("a process with an environment 'Pendulum-v1' of its own has ended" in str(error))
    print(np.array_equal(offspan.costs(one, pi, X + 2), offspan.costs(two, pi, X + 2)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"] * 4, done.stderr
    from offspan.systems.gymnasium import from_gymnasium

    with pytest.raises(offspan.OffspanError, match="pass the id of one"):
        from_gymnasium(__import__("gymnasium").make("Pendulum-v1"), horizon=3, processes=2)


def test_the_spec_in_the_docs_runs(own):
    page = (EXAMPLES.parent / "docs" / "audit.md").read_text()
    text = page.split("```toml\n")[1].split("```")[0]
    short = text.replace("iterations = 600", "iterations = 2").replace("seeds = 5", "seeds = 1").replace("horizon = 200", "horizon = 8")
    short = short.replace("[10, 20, 40, 60]", "[4]")
    (own / "docs.toml").write_text("states = 20\npoints = 3\n" + short)
    for command in ("run", "audit"):
        code, said = invoke(command, own / "docs.toml", "--folder", own / "runs")
        assert code == 0, said


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
    lost = offspan.audit(plant, offspan.Linear(3.0 * jnp.eye(3)), jnp.eye(3)[:2], region, states=50, points=3)
    assert lost.outcome.share == 0
    assert "train it further before you add [" in lost.suggested.note


def test_where_nothing_is_near_to_training_distance_tells_nothing():
    """Seven of eight directions are seen and steered to zero, and half of the region fails in the last: adding a state would gain it."""
    K = -jnp.eye(8).at[7, 7].set(0.0)
    found = offspan.audit(
        offspan.identity(8, horizon=3),
        offspan.Linear(K),
        jnp.eye(8)[:7],
        dict.fromkeys(range(8), (-1.0, 1.0)),
        success=lambda x: jnp.abs(x[7]) < 0.5,
        points=2,
        add=1,
    )
    assert 0.4 < found.outcome.share < 0.6
    assert "hardly matters" not in found.suggested.note
    assert "does not predict the gain here" in found.suggested.note


def test_multiples_of_rewards_are_no_criterion():
    rewards = offspan.FunctionProblem(lambda x, u: x + u, lambda x, u: -1.0 + 0 * x[0], state_dim=2, control_dim=2, horizon=5)
    still = offspan.Linear(jnp.zeros((2, 2)))
    with pytest.raises(offspan.OffspanError, match="costs of the reference are negative"):
        offspan.audit(rewards, still, jnp.eye(2)[:1], {0: (-1.0, 1.0)}, reference=still, states=10, points=3)


def test_training_again_by_a_loss_is_not_called_stuck():
    """J rises on purpose; `train` says nothing of it, either (a warning would be an error here)."""
    plant, options = offspan.identity(2, horizon=3), {"optimizer": optax.sgd(0.05), "iterations": 150, "loss": away}
    found = offspan.audit(
        plant,
        offspan.Linear(-0.9 * jnp.eye(2)),
        jnp.eye(2)[:1],
        {1: (-1.0, 1.0)},
        success=lambda x: x[1] > 0,
        states=40,
        points=3,
        retrain=options,
    )
    assert found.retrained is not None
    with pytest.raises(offspan.OffspanError, match="`retrain` has no option 'on_chunk'"):
        offspan.audit(
            plant,
            offspan.Linear(-0.9 * jnp.eye(2)),
            jnp.eye(2)[:1],
            {1: (-1.0, 1.0)},
            success=lambda x: x[1] > 0,
            states=40,
            points=3,
            retrain={**options, "on_chunk": print},
        )


def away(problem, controller, x0s):
    return -jnp.minimum(offspan.cost(problem, controller, x0s), 50.0)


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


def test_an_audit_resumes_its_training(monkeypatch):
    """Parts after the training are lost: it is resumed where it stood, and not trained again."""
    memory: dict[str, Any] = {}
    resumed: list[Any] = []
    module = sys.modules["offspan.audit"]
    original = module.train_batch
    monkeypatch.setattr(module, "train_batch", lambda *given, **how: resumed.append(how["resume"]) or original(*given, **how))
    options: dict[str, Any] = {"success": lambda x: x[1] > 0, "states": 20, "points": 3, "memory": memory}
    options["retrain"] = {"optimizer": optax.sgd(1e-3), "iterations": 5}
    given = offspan.identity(2, horizon=3), offspan.Linear(jnp.zeros((2, 2))), jnp.eye(2)[:1], {0: (-1.0, 1.0), 1: (-1.0, 1.0)}
    whole = offspan.audit(*given, **options)
    for name in [name for name in memory if name.startswith("retrained")]:
        del memory[name]
    again = offspan.audit(*given, **options)
    assert resumed[0] is None
    assert resumed[1].done == 5
    np.testing.assert_array_equal(again.retrained.costs, whole.retrained.costs)  # pyright: ignore[reportOptionalMemberAccess]


def test_parts_of_another_controller_are_not_used(own):
    """An audit is stopped, its controller is changed, and the audit is started again: as if it were the first."""
    spec = own / "swing.toml"
    spec.write_text(SPEC.replace("[region]", "[controller]\ngain = [[-1.0, -1.0]]\n[region]"))

    def progress(share):
        if share > 0.5:
            raise StoppedError

    with pytest.raises(StoppedError):
        audited_file(spec, progress=progress)
    assert list((own / "runs" / ".audit-swing").glob("*.npz"))
    spec.write_text(SPEC.replace("[region]", "[controller]\ngain = [[-3.0, -2.0]]\n[region]"))
    other = audited_file(spec)[0]
    import own_plant  # pyright: ignore[reportMissingImports]

    expected = offspan.costs(own_plant.make(), offspan.Linear([[-3.0, -2.0]]), other.states)
    np.testing.assert_allclose(other.outcome.costs, expected, rtol=1e-12)
