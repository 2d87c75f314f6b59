"""Files: what others put beside ours stays, no link is followed, and threads that write the same file never mix."""

import os
import shutil
import stat
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

import offspan
from offspan.cli import app, main
from offspan.experiments.registry import spec_from
from offspan.experiments.run import run
from offspan.experiments.store import RunFolder
from offspan.files import atomic_write_text

SPEC = {"name": "small", "systems": ["shift"], "dim": [3], "horizon": [3], "seen": [1], "learning_rate": [0.01], "iterations": 20}


STRANGE = """
systems = ["a[/b]"]
dim = [1]
horizon = [2]
learning_rate = [0.1]
seen = [1]
iterations = 3
[matrices."a[/b]"]
A = [[1.0]]
"""


def trained(folder):
    return run(spec_from(dict(SPEC), "test"), folder, lambda share: None)


def test_a_link_under_the_name_that_a_temporary_file_had_is_not_followed(tmp_path):
    stranger = tmp_path / "stranger.txt"
    stranger.write_text("theirs")
    (tmp_path / f".{os.getpid()}.page.html").symlink_to(stranger)
    atomic_write_text(tmp_path / "page.html", "ours")
    assert stranger.read_text() == "theirs"
    assert (tmp_path / "page.html").read_text() == "ours"
    assert len(list(tmp_path.iterdir())) == 3


def test_threads_that_write_one_file_leave_it_whole(tmp_path):
    path, texts = tmp_path / "page.html", ["a" * 200_000, "b" * 100_000]
    atomic_write_text(path, texts[0])
    ended = threading.Event()
    failures: list[Exception] = []

    def write(text):
        try:
            for _ in range(60):
                atomic_write_text(path, text)
        except OSError as error:
            failures.append(error)
        ended.set()

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    seen = set()
    while not ended.is_set():
        seen.add(path.read_text())
    for thread in threads:
        thread.join()
    assert not failures
    assert seen <= set(texts)
    assert seen


def test_a_file_has_the_permissions_of_one_that_is_simply_opened(tmp_path):
    atomic_write_text(tmp_path / "ours", "x")
    (tmp_path / "plain").write_text("x")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_run_removes_only_its_own_checkpoints(tmp_path):
    checkpoints = tmp_path / "small" / "checkpoint"
    trained(tmp_path)
    checkpoints.mkdir()
    np.savez(checkpoints / "mine.npz", x=np.zeros(3))
    trained(tmp_path)
    assert [path.name for path in checkpoints.iterdir()] == ["mine.npz"]


@pytest.mark.parametrize("name", ["checkpoint", "figures"])
def test_a_link_out_of_the_runs_folder_is_not_followed(tmp_path, name):
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    np.savez(strangers / "training.npz", x=np.zeros(3))
    (strangers / "measures.png").write_text("theirs")
    trained(tmp_path / "runs")
    folder = RunFolder(tmp_path / "runs" / "small")
    (folder.path / name).symlink_to(strangers)
    trained(tmp_path / "runs")  # found complete
    folder.result_file.unlink()
    with pytest.raises(offspan.OffspanError, match="is a link, and a run writes only into its own folder"):
        folder.save_report({}, {"table.md": "x"}) if name == "figures" else trained(tmp_path / "runs")
    assert sorted(path.name for path in strangers.iterdir()) == ["measures.png", "training.npz"]
    assert (strangers / "measures.png").read_text() == "theirs"


def test_a_page_is_written_over_nothing_but_a_page(tmp_path):
    trained(tmp_path / "runs")
    spec = tmp_path / "runs" / "small" / "spec.toml"
    before = spec.read_text()
    for target in (spec, spec.with_name("result.nc"), tmp_path):
        result = CliRunner().invoke(app, ["report", "--folder", str(tmp_path / "runs"), "--output", str(target)])
        assert "is there already and is no page of offspan" in str(result.exception)
    assert spec.read_text() == before
    page = tmp_path / "page.html"
    for _ in range(2):  # the second over the first
        assert CliRunner().invoke(app, ["report", "--folder", str(tmp_path / "runs"), "--output", str(page)]).exit_code == 0


def test_brackets_in_the_names_of_folders_are_not_markup(tmp_path):
    runs = tmp_path / "runs[/old]"
    trained(runs)
    (runs / "small").rename(runs / "[red]x[old]")
    for command in (["list"], ["show", "[red]x[old]"], ["report", "[red]x[old]"]):
        result = CliRunner().invoke(app, [*command, "--folder", str(runs)])
        assert result.exit_code == 0, result.exception
        assert "[red]x[old]" in result.output.replace("\n", "") or command[0] == "show"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (STRANGE, "should match pattern"),
        ("x = " + "[" * 100_000, "is nested too deeply"),
        ("iterations = " + "9" * 5_000, "is not a TOML file"),
    ],
)
def test_strange_specs_are_one_sentence(tmp_path, text, said):
    (tmp_path / "strange.toml").write_text(text)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "strange.toml"), "--folder", str(tmp_path)])
    assert isinstance(result.exception, offspan.OffspanError)
    assert said in str(result.exception)
    assert "set_int_max" not in str(result.exception)


def test_escape_sequences_of_a_file_do_not_reach_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["offspan", "show", "\x1b[31mred", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "x1b[31mred" in said


def test_a_small_file_that_would_fill_the_memory_is_refused_before_it_is_read(tmp_path):
    """Two thousand million numbers that are declared and not there, or zeros that compress a thousandfold; and numbers in other files."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(Path(__file__).parents[1] / "docs" / "results" / "lqr-random-abq" / "spec.toml", run)
    (tmp_path / "numbers").write_bytes(bytes(80))
    hostile = {
        "declared": lambda file: file.create_dataset("K", (2 * 10**9,), "f8", chunks=(10**6,)),
        "zeros": lambda file: file.create_dataset("K", data=np.zeros(5 * 10**7), compression="gzip", chunks=(10**6,)),
        "elsewhere": lambda file: file.create_dataset("K", (10,), "f8", external=[(str(tmp_path / "numbers"), 0, 80)]),
    }
    for name, make in hostile.items():
        with h5py.File(run / "result.nc", "w") as file:
            make(file)
        with pytest.raises(offspan.OffspanError, match="has its numbers in other files" if name == "elsewhere" else "bytes that declare"):
            RunFolder(run).load_result()
