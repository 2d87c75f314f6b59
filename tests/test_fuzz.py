"""Whatever comes from outside, spoilt at random: it works or gets a sentence, and no result is changed or lost.

`OFFSPAN_FUZZ=20` makes twenty times as many inputs as the tests do by default, each test twenty times with other random numbers.
"""

import hashlib
import io
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

import offspan
from offspan import cli
from offspan.experiments.checkpoints import Checkpoint
from offspan.experiments.registry import kind, load_preset, load_spec, preset_names
from offspan.experiments.store import RunFolder

repeated = pytest.mark.parametrize("part", range(int(os.environ.get("OFFSPAN_FUZZ", "1"))))
VALUES: list[Any] = [
    0,
    -1,
    1,
    2,
    10**20,
    0.5,
    float("nan"),
    float("inf"),
    -0.0,
    1e308,
    "",
    "lqr",
    "../up",
    "ü" * 300,
    True,
    [],
    [[]],
    {},
    [1, "a"],
]
VALUES += [[0.0], [[1.0, 2.0], [3.0]], [[float("nan")]], {"a": 1}, [None], "float32", "adam", [10**6], ["gaussian"], [[1e200, 1e200]]]


def spoil_bytes(content: bytes, rng: random.Random) -> bytes:
    """Cut short, flipped, overwritten, doubled, or something inserted."""
    spoilt = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(spoilt) + 1)
        match rng.randrange(5):
            case 0:
                del spoilt[place:]
            case 1 if place < len(spoilt):
                spoilt[place] ^= 1 << rng.randrange(8)
            case 2:
                spoilt[place : place + 8] = rng.randbytes(8)
            case 3:
                spoilt[place:place] = spoilt[: rng.randrange(64)]
            case _:
                del spoilt[place : place + rng.randrange(1, 200)]
    return bytes(spoilt)


def spoil_value(value: Any, rng: random.Random) -> Any:
    """Somewhere in a tree of dictionaries and lists, one value replaced, left out or doubled, or a key renamed."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        match rng.randrange(6):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, key[:-1] or "x": value[key]}
            case 2:
                return {**value, key: rng.choice(VALUES)}
            case _:
                return {**value, key: spoil_value(value[key], rng)}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return [*value, value[place]]
            case _:
                return [*value[:place], spoil_value(value[place], rng), *value[place + 1 :]]
    return rng.choice(VALUES)


def is_a_sentence(text: str) -> bool:
    return 10 < len(text) < 2000 and "Traceback" not in text and not text.startswith(("'", "<", "("))


def refusal(call: Callable[[], Any]) -> str:
    """The sentence with which something was refused, empty where it was not; any other error is raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what NumPy says of a spoilt header before it refuses it
            call()
    except offspan.OffspanError as error:
        assert is_a_sentence(str(error)), error  # noqa: PT017 (the error itself is what is looked at)
        return str(error)
    return ""


def without_none(value: Any) -> Any:
    """TOML has no null."""
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return [without_none(one) for one in value if one is not None] if isinstance(value, list) else value


@repeated
def test_specs(part, tmp_path):
    """1,000 spoilt presets, in their values and in their letters."""
    rng = random.Random(f"1-{part}")
    contents = [without_none(load_preset(name).model_dump(exclude_none=True)) for name in preset_names()]
    refused = 0
    path = tmp_path / "spec.toml"
    for i in range(1000):
        content = rng.choice(contents)
        if i % 4:
            for _ in range(rng.randint(1, 3)):
                content = spoil_value(content, rng)
            path.write_text(tomli_w.dumps(without_none(content) if isinstance(content, dict) else {"content": without_none(content)}))
        else:
            path.write_bytes(spoil_bytes(tomli_w.dumps(content).encode(), rng))
        sentence = refusal(lambda: kind(load_spec(path).kind).tasks(load_spec(path)))
        refused += bool(sentence)
        assert not sentence or str(path) in sentence
    assert 400 < refused < 1000


@repeated
def test_matrices(part, tmp_path):
    """300 spoilt .npz files beside a spec."""
    rng, draw = random.Random(f"2-{part}"), np.random.default_rng([2, part])
    text = 'systems = ["mine"]\ndim = [3]\nhorizon = [4]\nseen = [1]\nlearning_rate = [0.01]\niterations = 10\n'
    (tmp_path / "spec.toml").write_text(text + '[matrices.mine]\nfile = "mine.npz"\n')
    refused = 0
    for i in range(300):
        arrays = {"A": draw.normal(size=(3, 3)), "B": np.eye(3), "Q": np.eye(3), "R": 0 * np.eye(3)}
        name = rng.choice(list(arrays))
        match rng.randrange(7):
            case 0:
                arrays[name] = draw.normal(size=rng.choice([(3,), (2, 3), (3, 2), (3, 3, 3), (0, 0), ()]))
            case 1:
                arrays[name] = arrays[name].astype(rng.choice([complex, "U3", bool, np.float16, np.int8, "M8[s]"]))
            case 2:
                arrays[name] = arrays[name] + rng.choice([np.nan, np.inf, 1e200, -1.0, 0.0])
            case 3:
                arrays[name + "x"] = arrays.pop(name)
            case 4:
                arrays[name] = np.triu(arrays[name] + 1)
            case _:
                pass
        file = io.BytesIO()
        np.savez(file, **arrays)
        (tmp_path / "mine.npz").write_bytes(spoil_bytes(file.getvalue(), rng) if i % 2 else file.getvalue())
        refused += bool(refusal(lambda: load_spec(tmp_path / "spec.toml")))
    assert 100 < refused < 300


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A folder with finished runs, as they are in the repository."""
    root = tmp_path_factory.mktemp("runs")
    results = Path(__file__).parent.parent / "docs" / "results"
    for name in ("lqr-random-abq", "shift-regularized", "pendulum"):
        (root / name).mkdir()
        for file in ("spec.toml", "result.nc", "provenance.json"):
            shutil.copy(results / name / file, root / name / file)
    return root


def fingerprint(root: Path) -> dict[str, str]:
    """Of every file in the run folders."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(root.glob("*/**/*")) if path.is_file()}


def exit_of(*arguments: str) -> tuple[int, str]:
    """The exit code and the words of the command, in this process; anything but a sentence is raised."""
    done = CliRunner().invoke(cli.app, list(arguments))
    if isinstance(done.exception, (offspan.OffspanError, OSError)):
        assert is_a_sentence(str(done.exception)), done.exception
        return 2, str(done.exception)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


@repeated
def test_result_files(part, stored, monkeypatch):
    """216 spoilt results that are shown, and 24 that are whole but not what a run leaves, of which a page is made: done or refused, and
    left as they are."""
    monkeypatch.setattr("offspan.report.page.vector", lambda figure: "")  # drawn, but not written out
    rng = random.Random(f"3-{part}")
    names = ["lqr-random-abq", "shift-regularized"]
    loaded = {name: RunFolder(stored / name).load_result() for name in names}
    loaded = {name: result.isel(iteration=slice(-3, None)) for name, result in loaded.items()}  # small, for many of them
    whole = {name: bytes(result.to_netcdf(engine="h5netcdf")) for name, result in loaded.items()}
    codes = []
    for i in range(240):
        name = rng.choice(names)
        file = stored / name / "result.nc"
        if i % 10:
            file.write_bytes(spoil_bytes(whole[name], rng))
        else:
            result = loaded[name]
            match rng.randrange(4):
                case 0:
                    result = result.drop_vars(str(rng.choice(list(result.variables))))
                case 1:
                    result = result.isel({rng.choice(list(result.sizes)): slice(0, rng.randrange(2))})
                case 2:
                    result = result.assign_attrs({rng.choice(list(result.attrs)): rng.choice(["", "starts", "network", 0, -1.5])})
                case _:
                    result = result.drop_attrs()
            file.write_bytes(bytes(result.to_netcdf(engine="h5netcdf")))
        before = fingerprint(stored)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code, _ = exit_of("show" if i % 10 else "report", name, "--folder", str(stored))
        codes.append(code)
        assert code in (0, 2)
        assert fingerprint(stored).items() >= before.items()
        file.write_bytes(whole[name])
    assert 100 < codes.count(2) < 240


def test_a_result_that_was_changed_after_the_run_is_noticed(stored, tmp_path):
    shutil.copytree(stored / "lqr-random-abq", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.save_result(folder.spec(), folder.load_result(), {})
    assert exit_of("show", "run", "--folder", str(tmp_path))[0] == 0
    folder.result_file.write_bytes(folder.result_file.read_bytes() + b" ")
    code, words = exit_of("show", "run", "--folder", str(tmp_path))
    assert code == 2
    assert "is not the file that the run wrote" in words


@repeated
def test_checkpoints(part, tmp_path):
    """400 spoilt checkpoints: each is refused by name, or holds the very numbers that were written."""
    rng = random.Random(f"4-{part}")
    spec = load_preset("shift-regularized")
    folder = RunFolder(tmp_path)
    state = {"K": np.arange(24.0).reshape(2, 3, 2, 2), "codes": np.zeros(3, np.int8), "recorded": np.array([0, 5]), "done": np.array(5)}
    folder.save_checkpoint(spec, "starts", Checkpoint(state, 0.5, 1.5))
    path = tmp_path / "checkpoint" / "starts.npz"
    whole = path.read_bytes()
    refused = 0
    for i in range(400):
        if i % 4:
            path.write_bytes(spoil_bytes(whole, rng))
        else:
            with np.load(io.BytesIO(whole), allow_pickle=False) as stored:
                arrays = dict(stored)
            name = rng.choice(list(arrays))
            arrays[name] = rng.choice([arrays[name][..., None], arrays[name].ravel()[:1], np.array("x"), np.array([[1j]]), np.array(7)])
            np.savez(path, allow_pickle=False, **arrays)
        loaded = []
        sentence = refusal(lambda loaded=loaded: loaded.append(folder.load_checkpoint(spec, "starts")))
        refused += bool(sentence)
        assert not sentence or str(path) in sentence
        for found in loaded:
            assert (found.share, found.seconds, set(found.arrays)) == (0.5, 1.5, set(state))
            for name, value in found.arrays.items():
                np.testing.assert_array_equal(value, state[name])
    assert refused > 300


@repeated
def test_controller_files(part, tmp_path):
    """200 spoilt controllers: refused, or a controller."""
    rng = random.Random(f"5-{part}")
    path = tmp_path / "controller.npz"
    offspan.save_controller(offspan.Bounded(offspan.Linear(np.eye(2)), -1.0, 1.0), path)
    whole, refused = path.read_bytes(), 0
    for _ in range(200):
        path.write_bytes(spoil_bytes(whole, rng))
        refused += bool(refusal(lambda: offspan.load_controller(path)))
    assert refused > 100


COMMANDS = {
    "reproduce": ["lqr", "lqr-large", "pendulum", "--all", "--quick", "--seeds", "3"],
    "run": ["spec.toml", "--folder", "elsewhere"],
    "select": ["spec.toml", "--method", "pilot", "--output", "chosen.toml"],
    "map": ["pendulum", "--coordinate", "0", "--points", "3", "--margin", "0.5"],
    "list": ["--folder", "runs"],
    "show": ["lqr-random-abq", "--csv", "--table", "table"],
    "verify": ["prop:shift", "--dim", "4", "--list", "--seeds", "1", "--horizon", "8", "--figures"],
    "report": ["lqr-random-abq", "--paper", "--output", "page.html"],
}
WORDS = [
    "",
    "-",
    "--",
    "---",
    "\x00",
    "ü",
    "../..",
    "/dev/null",
    "-1",
    "1e9",
    "999999999999999999999",
    "nan",
    "--help",
    "--version",
    "[x]",
    "'",
    "*",
]


@repeated
def test_command_line_arguments(part, stored, tmp_path, monkeypatch):
    """200 command lines of words out of place; what would train or draw for long is left out, the rest is done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("offspan.cli.run_and_report", lambda spec, folder, executor: None)
    monkeypatch.setattr("offspan.experiments.verifying.verify_on", lambda executor, labels, settings, progress: [])
    monkeypatch.setattr("offspan.report.theory.theory_figures", dict)
    monkeypatch.setattr("offspan.report.page.vector", lambda figure: "")
    # No good, and found to be so before anything is chosen.
    (tmp_path / "spec.toml").write_text(
        'systems = ["shift"]\ndim = [3]\nhorizon = [3]\nlearning_rate = [0.1]\niterations = 10\n[choose]\nk = 5\n'
    )
    rng = random.Random(f"6-{part}")
    before = {path: digest for path, digest in fingerprint(stored).items() if "figures" not in Path(path).parts}  # maps are drawn anew
    codes = []
    for _ in range(200):
        command = rng.choice(list(COMMANDS))
        words = [word for word in COMMANDS[command] if rng.random() < 0.6]
        for _ in range(rng.randint(0, 2)):
            words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))
        if rng.random() < 0.2:
            command = command[:-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code, _ = exit_of(command, *words, *(["--folder", str(stored)] if command in ("map", "show", "list", "report") else []))
        codes.append(code)
        assert code in (0, 2)
    assert fingerprint(stored).items() >= before.items()
    assert 5 < codes.count(0) < 150
