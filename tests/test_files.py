"""Files: what others put beside ours stays, no link is followed, and threads that write the same file never mix."""

import contextlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import offspan
from offspan.cli import app, main
from offspan.experiments.auditing import kept_parts
from offspan.experiments.checkpoints import save_arrays
from offspan.experiments.registry import load_spec, spec_from
from offspan.experiments.run import run
from offspan.experiments.store import RunFolder
from offspan.experiments.verifying import check_place
from offspan.files import arrays_in, atomic_write, atomic_write_text, without_formulas
from offspan.maps import ExtrapolationMap
from offspan.report.maps import map_data
from offspan.report.tables import Table, markdown_table

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


def test_a_run_removes_no_hidden_file_of_somebody_else(tmp_path):
    """Backups as editors and people name them, beside each file that a run writes and removes."""
    trained(tmp_path / "runs")
    folder = RunFolder(tmp_path / "runs" / "small")
    folder.checkpoints.mkdir()
    theirs = [folder.path / f".{word}.{name}" for word in ("old", "original") for name in ("result.nc", "spec.toml", "provenance.json")]
    theirs += [folder.checkpoints / f".{word}.dim-2-horizon-3.npz" for word in ("my.own", "backup")]
    for path in theirs:
        path.write_text("theirs")
    (folder.path / ".x.result.nc").mkdir()
    folder.result_file.unlink()
    trained(tmp_path / "runs")
    assert folder.is_complete()
    assert [path.read_text() for path in theirs] == ["theirs"] * len(theirs)


def test_an_audit_writes_only_into_its_own_folder_and_over_nothing_of_others(tmp_path):
    (tmp_path / "theirs").mkdir()
    np.savez(tmp_path / "theirs" / "arguments.npz", x=np.zeros(3))
    (tmp_path / ".audit-linked").symlink_to(tmp_path / "theirs")
    with pytest.raises(offspan.OffspanError, match="is a link"), kept_parts(tmp_path / ".audit-linked", "digest"):
        pass
    with pytest.raises(offspan.OffspanError, match=r"arguments.npz is in the way"), kept_parts(tmp_path / "theirs", "digest") as parts:
        parts.get("arguments")
    assert (tmp_path / "theirs" / "arguments.npz").exists()
    with contextlib.suppress(KeyboardInterrupt), kept_parts(tmp_path / "ours", "digest of another audit") as parts:
        parts["arguments"] = {"x": np.zeros(3)}
        raise KeyboardInterrupt
    with kept_parts(tmp_path / "ours", "digest") as parts:
        assert parts.get("arguments") is None, "parts of another audit are as if they were not there"


@pytest.mark.parametrize("name", ["checkpoint", "figures"])
def test_a_link_out_of_the_runs_folder_is_not_followed(tmp_path, name):
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    np.savez(strangers / "training.npz", x=np.zeros(3))
    (strangers / "measures.png").write_text("theirs")
    trained(tmp_path / "runs")
    folder = RunFolder(tmp_path / "runs" / "small")
    (folder.path / name).symlink_to(strangers)
    (strangers / "dim-3-horizon-3.npz").write_text("theirs, under the name of a checkpoint of this run")
    trained(tmp_path / "runs")  # found complete
    (strangers / "dim-3-horizon-3.npz").unlink()
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


def test_a_link_to_nothing_is_not_written_over(tmp_path):
    (tmp_path / "lab.html").symlink_to(tmp_path / "elsewhere")
    result = CliRunner().invoke(app, ["lab", "--no-open", "--output", str(tmp_path / "lab.html")])
    assert "lab.html is there already and is no page of offspan" in str(result.exception)
    assert (tmp_path / "lab.html").is_symlink()


def test_claims_are_written_over_nothing_but_claims(tmp_path, monkeypatch):
    """Said before they are computed; the stored ones, and those of earlier versions, are claims."""
    monkeypatch.setattr("offspan.experiments.verifying.verify_on", lambda *_: pytest.fail("it computes"))

    def said() -> str:
        return str(CliRunner().invoke(app, ["verify", "prop:shift", "--folder", str(tmp_path)]).exception)

    stored = Path(__file__).parents[1] / "docs" / "results" / "verify"
    (tmp_path / "verify").mkdir()
    check_place(stored, ["claims.md", "claims.json"])
    for name in ("some-claims.md", "some-claims.json"):
        (tmp_path / "verify" / name).write_text("# Notes\n")
        assert f"{name} is there already and was not written by offspan verify; name another place" in said()
        assert (tmp_path / "verify" / name).read_text() == "# Notes\n"
        shutil.copy(stored / name.removeprefix("some-"), tmp_path / "verify" / name)
    (tmp_path / "verify" / "spec.toml").write_text("")
    assert "verify holds a run; name another folder" in said()
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, whom no permission stops
    with pytest.raises(offspan.OffspanError, match=r"nothing may be written to the folder '.*verify'; name another one"):
        check_place(tmp_path / "verify" / "in" / "it", [])


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
        (STRANGE, "must be letters, digits, `.`, `_` and `-`"),
        ("x = " + "[" * 100_000, "is nested too deeply"),
        ("iterations = " + "9" * 5_000, "is not a TOML file"),
        ("iterations = 0x" + "f" * 5_000, "is not a TOML file"),
        ("iterations = " + "9" * 4_000, "99…)"),
        (".".join(["a"] * 20_000) + " = 1", "is nested too deeply"),
        ('title = "a\\u0000b"', "the character NUL"),
        ('systems = [{ name = "a\\u0000b" }]', "the character NUL"),
    ],
)
def test_strange_specs_are_one_sentence(tmp_path, text, said):
    (tmp_path / "strange.toml").write_text(text)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "strange.toml"), "--folder", str(tmp_path)])
    assert isinstance(result.exception, offspan.OffspanError)
    assert said in str(result.exception)
    assert "set_int_max" not in str(result.exception)
    assert len(str(result.exception)) < 500


def test_escape_sequences_of_a_file_do_not_reach_the_terminal(tmp_path, capsys, monkeypatch):
    (tmp_path / "\x1b[31mred.toml").write_text("[")
    for command in (["show", "\x1b[31mred"], ["run", str(tmp_path / "\x1b[31mred.toml")]):  # the first is quoted, the second is not
        monkeypatch.setattr("sys.argv", ["offspan", *command, "--folder", str(tmp_path)])
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr().err
        assert "\x1b" not in said
        assert "x1b[31mred" in said


def test_neither_do_those_in_the_name_of_a_folder_or_in_a_result(tmp_path):
    """A stranger's run: its folder, the attributes and the names of systems in its result, and a spec that cannot be read."""
    shutil.copytree(Path(__file__).parents[1] / "docs" / "results" / "lqr-random-abq", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    result = folder.load_result().assign_coords(system=["\x1b[31mred"])
    folder.save_result(folder.spec(), result.assign_attrs(name="\x1b]0;title\x07"), {})
    (tmp_path / "\x1b[2J").mkdir()
    (tmp_path / "\x1b[2J" / "spec.toml").write_text("[")
    (tmp_path / "\x1b[2J" / "result.nc").write_text("")
    for command in ("list", "show run", "show run --csv", "report"):
        if command == "report":
            shutil.rmtree(tmp_path / "run")
        said = CliRunner().invoke(app, [*command.split(), "--folder", str(tmp_path)], catch_exceptions=False).output
        assert "\x1b" not in said, command
        assert "\\x1b[" in said, command


def test_a_formula_in_a_result_is_refused(tmp_path):
    """One that matplotlib cannot read would end `report` for all runs."""
    shutil.copytree(Path(__file__).parents[1] / "docs" / "results" / "lqr-random-abq", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.save_result(folder.spec(), folder.load_result().assign_coords(system=[r"$\frac{1}{$"]), {})
    with pytest.raises(offspan.OffspanError, match=r"its coordinate 'system' has a text with `\$`"):
        folder.load_result()


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


def test_zeros_that_compress_a_thousandfold_are_not_unpacked():
    file = io.BytesIO()
    np.savez_compressed(file, K=np.zeros(5 * 10**7))
    file.seek(0)
    with pytest.raises(offspan.OffspanError, match=r"beside\.npz .* bytes that declare 0\.4 GiB"):
        arrays_in(file, "beside.npz")


KILLED = """
import os, pathlib, signal, sys
from offspan.files import atomic_write
atomic_write(pathlib.Path(sys.argv[1]), lambda path: (path.write_text("half"), os.kill(os.getpid(), signal.SIGKILL)))
"""


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_the_same_file(tmp_path):
    path = tmp_path / "measures.png"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    (half,) = tmp_path.iterdir()
    assert half.name.endswith(".measures.png")
    strangers = {".backup.measures.png", ".original.measures.png", ".2024.measures.png", ".offspan-a1b2c3d4.other.png"}
    for name in strangers:
        (tmp_path / name).write_text("x")
    (tmp_path / "linked").write_text("theirs")
    special = {".offspan-a1b2c3d4.measures.png", ".offspan-a1b2c3d5.measures.png"}
    (tmp_path / min(special)).symlink_to(tmp_path / "linked")
    os.mkfifo(tmp_path / max(special))

    def write(temporary):
        """While one writes, another does: what is being written is not removed."""
        atomic_write_text(path, "first")
        assert temporary.exists()
        temporary.write_text("second")

    atomic_write(path, write)
    assert path.read_text() == "second"
    kept = {*strangers, *special, "linked"}
    assert {one.name for one in tmp_path.iterdir()} == {path.name, *kept}


@pytest.fixture
def _no_waiting():
    """A pipe that is opened waits for a writer without end: the test fails in its place."""

    def fail(*_):
        raise AssertionError("it waits")

    handler = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("name", ["spec.toml", "result.nc", "provenance.json", "checkpoint/dim-3-horizon-3.npz", "figures", "."])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path, name):
    trained(tmp_path)
    shutil.copytree(tmp_path / "small", tmp_path / "other")
    path = tmp_path / "small" / name
    if name.startswith("checkpoint"):
        path.parent.mkdir()
        (tmp_path / "small" / "result.nc").unlink()
    elif name == ".":
        shutil.rmtree(path)
    elif name != "figures":
        path.unlink()
    os.mkfifo(tmp_path / "small" if name == "." else path)
    assert "other" in CliRunner().invoke(app, ["list", "--folder", str(tmp_path)], catch_exceptions=False).output
    assert CliRunner().invoke(app, ["report", "--folder", str(tmp_path)], catch_exceptions=False).exit_code == 0
    folder = RunFolder(tmp_path / "small")
    if name != "provenance.json":
        with pytest.raises(offspan.OffspanError, match=r"a pipe or a device|is a file|cannot be a folder"):
            folder.save_report({}, {"table.md": "x"}) if name == "figures" else trained(tmp_path)


@pytest.mark.usefixtures("_no_waiting")
def test_a_pipe_or_a_folder_that_is_named_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.toml")
    os.mkfifo("pipe.npz")
    (tmp_path / "file").write_text("")
    for command, said in {
        "run pipe.toml": "pipe.toml is a pipe or a device, where a file is needed.",
        "select pipe.toml": "is a pipe or a device",
        "audit pipe.toml": "pipe.toml is a pipe or a device, where a file is needed.",
        "audit none.toml": "there is no file 'none.toml'.",
        "run .": ". is a folder, where a file is needed.",
        "audit .": ". is a folder, where a file is needed.",
        "audit /": "/ is a folder, where a file is needed.",
        "report": "there is no finished run in runs to report on",
        "report none": "there is no run 'none' in runs.",
        "report --stored none": "--stored is 'none', but there is no such folder.",
        "reproduce lqr-random-abq --cluster pipe.toml": "is not a scheduler file",
        "reproduce lqr-random-abq --quick --folder file": "file cannot be a folder",
        "reproduce lqr-random-abq --quick --folder file/in": "file/in cannot be a folder",
        "verify prop:shift --dim 2 --horizon 4 --seeds 1 --folder file": "file/verify cannot be a folder",
    }.items():
        failed = CliRunner().invoke(app, command.split()).exception
        assert isinstance(failed, offspan.OffspanError), command
        assert said in str(failed)
        assert "Errno" not in str(failed)
    with pytest.raises(offspan.OffspanError, match="pipe or a device"):
        offspan.load_controller("pipe.npz")
    with pytest.raises(offspan.OffspanError, match="it is a folder; name a file in it"):
        offspan.save_controller(offspan.Linear([[1.0]]), "")


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "[" * 100_000,
        '{"a": ' * 400 + "1" + "}" * 400,
        '{"seconds": {"a": [1]}, "result": 5}',
        '{"seconds": "\\u001b[31mred", "packages": "none", "tasks": null}',
        '{"seconds": 1e999, "commit": ' + "9" * 5_000 + "}",
        '{"seconds": ' + "9" * 4_000 + "}",
        '{"commit": "\\ud800"}',
    ],
)
def test_a_strange_provenance_stops_nothing(tmp_path, text):
    trained(tmp_path)
    shutil.copytree(tmp_path / "small", tmp_path / "other")
    (tmp_path / "small" / "provenance.json").write_text(text)
    listed = CliRunner().invoke(app, ["list", "--folder", str(tmp_path)], catch_exceptions=False)
    assert "other" in listed.output
    assert "\x1b" not in listed.output
    assert CliRunner().invoke(app, ["report", "--folder", str(tmp_path)], catch_exceptions=False).exit_code == 0
    assert ">other<" in (tmp_path / "report.html").read_text()


def test_a_folder_that_may_not_be_looked_into_stops_nothing(tmp_path, monkeypatch):
    trained(tmp_path)
    shutil.copytree(tmp_path / "small", tmp_path / "locked")
    looked = Path.stat

    def refuse(path, **options):
        if path.parent.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return looked(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)  # the tests may run as root, whom no permission stops
    listed = CliRunner().invoke(app, ["list", "--folder", str(tmp_path)], catch_exceptions=False).output
    assert ["locked", "cannot", "be", "read"] in map(str.split, listed.splitlines())
    made = CliRunner().invoke(app, ["report", "--folder", str(tmp_path)], catch_exceptions=False)
    assert f"Left out: {tmp_path / 'locked' / 'spec.toml'}: Permission denied." in made.output
    assert ">small<" in (tmp_path / "report.html").read_text()
    named = CliRunner().invoke(app, ["report", "locked", "--folder", str(tmp_path)])
    assert isinstance(named.exception, PermissionError)


@pytest.mark.parametrize("origin", ["[" * 100_000, "9" * 5_000, "[1", ""])
def test_a_checkpoint_with_strange_texts_is_refused_by_name(tmp_path, origin):
    """Its checksum may be right, and what it says wrong."""
    folder, spec = RunFolder(tmp_path), spec_from(dict(SPEC), "test")
    whole = {"share": np.asarray(0.5), "seconds": np.asarray(1.0), "origin": np.asarray("{}")}
    (tmp_path / "checkpoint").mkdir()
    save_arrays(tmp_path / "checkpoint" / "task.npz", whole, spec.digest())
    assert folder.load_checkpoint(spec, "task") is not None
    strange = {"origin": np.asarray(origin)} if origin else {"share": np.asarray("x")}
    save_arrays(tmp_path / "checkpoint" / "task.npz", {**whole, **strange}, spec.digest())
    with pytest.raises(offspan.OffspanError, match=r"task\.npz cannot be used .*; put back the file .* or move it away") as caught:
        folder.load_checkpoint(spec, "task")
    assert "set_int_max" not in str(caught.value)


def test_an_error_of_the_system_is_said_without_its_number(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError(28, "No space left on device", str(tmp_path / "result.nc"))

    monkeypatch.setattr("offspan.experiments.store.find_runs", fail)
    monkeypatch.setattr("sys.argv", ["offspan", "list", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"offspan: {tmp_path / 'result.nc'}: No space left on device.\n"


def test_others_provenance_is_shown_in_a_few_levels(tmp_path):
    trained(tmp_path)
    path = tmp_path / "small" / "provenance.json"
    deep = {"a": 1}
    for _ in range(100):
        deep = {"a": deep}
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": deep}))
    assert CliRunner().invoke(app, ["report", "--folder", str(tmp_path)], catch_exceptions=False).exit_code == 0
    assert "a a a a a a a a …" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "name", ["[red]x[/red]", "a|b", "a\nb", r"\input{x}", "50% #1 {", '=HYPERLINK("x")', r"$\frac{1}{$", "\x1b[31mz", "\x9bz"]
)
def test_a_name_of_a_system_is_neither_markup_nor_code(tmp_path, name):
    """Not for the terminal, for LaTeX, for markdown, for spreadsheets or for figures."""
    quoted = json.dumps(name)
    (tmp_path / "own.toml").write_text(
        f"systems = [{quoted}]\ndim = [1]\nhorizon = [2]\nlearning_rate = [0.1]\nseen_states = [[1.0]]\niterations = 3\n"
        f"[matrices.{quoted}]\nA = [[1.0]]\n"
    )
    with pytest.raises(offspan.OffspanError, match="must be letters, digits"):
        load_spec(tmp_path / "own.toml")


@pytest.mark.parametrize("name", ['=HYPERLINK("x")', "\x9bz", "a\u2028b", "a|b", r"\input{x}", ""])
def test_nor_is_a_name_of_a_way(name):
    ways = {"kind": "ways", "name": "w", "systems": ["shift"], "dim": 3, "horizon": [3], "iterations": 10, "compare_by": "horizon"}
    with pytest.raises(offspan.OffspanError, match="must be a text on one line that begins with a letter"):
        spec_from({**ways, "ways": [{"name": name, "learning_rate": 0.01}]}, "test")


def test_no_name_is_a_formula_in_a_spreadsheet(tmp_path):
    """Coordinates are named by a problem of one's own, or by somebody's model; numbers stay as they are."""
    names = ['=HYPERLINK("x")', "-x"]
    surface = ExtrapolationMap((0, 1), (np.array([-1.0, 1.0]), np.array([0.0, 2.0])), np.array([[-1.0, 2.0], [3.0, 4.0]]), False)
    RunFolder(tmp_path).save_report({"map-0-1": (Figure(), map_data(surface, names))}, {})
    lines = (tmp_path / "figures" / "map-0-1.csv").read_text().splitlines()
    assert lines[:2] == ['"\'=HYPERLINK(""x"")",\'-x,cost', "-1.0,0.0,-1.0"]
    texts = pd.DataFrame({"system": ["=1", "+1", "@a", "\ta", "a=1", "-0.5", "-.5", ""], "seed": range(8)})
    assert without_formulas(texts).system.tolist() == ["'=1", "'+1", "'@a", "'\ta", "a=1", "-0.5", "-.5", ""]


def test_a_line_break_ends_no_row_of_a_markdown_table():
    assert markdown_table(Table("", ["a"], [["x\ny|z"]])).splitlines()[2] == r"| x y\|z |"


def test_a_damaged_result_is_named_and_nobody_is_told_to_delete_it(tmp_path):
    shutil.copytree(Path(__file__).parents[1] / "docs" / "results" / "lqr-random-abq", tmp_path / "run")
    file = tmp_path / "run" / "result.nc"
    file.write_bytes(file.read_bytes()[:-100])
    found = CliRunner().invoke(app, ["show", "run", "--folder", str(tmp_path)]).exception
    assert isinstance(found, offspan.OffspanError)
    assert "result.nc" in str(found)
    assert "delete" not in str(found)


def test_groups_that_share_what_is_in_them_are_counted_once(tmp_path):
    """Thirty levels of two names for one group are a billion paths to the last one."""
    shutil.copytree(Path(__file__).parents[1] / "docs" / "results" / "lqr-random-abq", tmp_path / "run")
    with h5py.File(tmp_path / "run" / "result.nc", "a") as file:
        group = file.create_group("level0")
        for i in range(1, 31):
            above, group = group, file.create_group(f"level{i}")
            group["a"] = group["b"] = above
    began = time.monotonic()
    CliRunner().invoke(app, ["show", "run", "--folder", str(tmp_path)])
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("kind", ["many names", "long texts", "a group in itself"])
def test_a_result_whose_numbers_are_counted_wrongly_by_their_places_in_the_file_is_refused(tmp_path, kind):
    """Each was read whole, at gigabytes, from a file of two megabytes."""
    shutil.copytree(Path(__file__).parents[1] / "docs" / "results" / "lqr-random-abq", tmp_path / "run")
    with h5py.File(tmp_path / "run" / "result.nc", "a") as file:
        if kind == "many names":
            variable = file.create_dataset("extra0", (25 * 10**6,), "f8", chunks=(10**6,), compression="gzip")
            for i in range(1, 20):
                file[f"extra{i}"] = variable
        elif kind == "long texts":
            file.create_dataset("extra", (200_000,), h5py.string_dtype(), chunks=(1_000,), fillvalue="x" * 60_000)
        else:
            file["extra/again"] = file.create_group("extra")
    found = CliRunner().invoke(app, ["show", "run", "--folder", str(tmp_path)]).exception
    assert isinstance(found, offspan.OffspanError)
    assert ("holds itself" if kind == "a group in itself" else "bytes that declare") in str(found)


STRANGE_ATTRIBUTES = [(name, [1, 2, 3]) for name in ("spec_digest", "checksum", "kind", "iterations", "precision", "quick")]
STRANGE_ATTRIBUTES += [("note", np.bytes_(b"a\xff")), ("note", h5py.Empty("f8"))]


@pytest.mark.parametrize(("name", "value"), STRANGE_ATTRIBUTES)
def test_a_result_with_strange_attributes_stops_nothing(tmp_path, name, value):
    trained(tmp_path)
    shutil.copytree(tmp_path / "small", tmp_path / "other")
    (tmp_path / "small" / "provenance.json").unlink()
    with h5py.File(tmp_path / "small" / "result.nc", "a") as file:
        file.attrs[name] = value
    assert "damaged" in CliRunner().invoke(app, ["list", "--folder", str(tmp_path)], catch_exceptions=False).output
    assert isinstance(CliRunner().invoke(app, ["show", "small", "--folder", str(tmp_path)]).exception, offspan.OffspanError)
    assert CliRunner().invoke(app, ["report", "--folder", str(tmp_path)], catch_exceptions=False).exit_code == 0
    assert ">other<" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(("offset", "value"), [(16, bytes(16)), (24, b"\xf0" + b"\xff" * 7), (8, b"\xff\xff")])
def test_a_result_whose_heap_has_no_end_is_refused(tmp_path, offset, value):
    """HDF5 goes from object to object by their sizes: with a size of zero it never returns. In a process of its own, which can be ended."""
    trained(tmp_path)
    (tmp_path / "small" / "provenance.json").unlink()
    path = tmp_path / "small" / "result.nc"
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL") + offset
    content[heap : heap + len(value)] = value
    path.write_bytes(content)
    show = "from offspan.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", show, "show", "small", "--folder", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert "is cut short or no result file (a heap" in " ".join(done.stderr.split())


def test_a_result_that_does_not_say_its_precision_stops_nothing(tmp_path):
    trained(tmp_path)
    (tmp_path / "small" / "provenance.json").unlink()
    with h5py.File(tmp_path / "small" / "result.nc", "a") as file:
        for name in ("spec_digest", "checksum", "precision"):
            del file.attrs[name]
    assert "damaged" in CliRunner().invoke(app, ["list", "--folder", str(tmp_path)], catch_exceptions=False).output


def test_a_folder_whose_name_is_no_text_is_reported(tmp_path):
    trained(tmp_path / "runs")
    with contextlib.suppress(OSError, UnicodeError):  # a file system that takes no such name
        (tmp_path / "runs" / "small").rename(tmp_path / "runs" / os.fsdecode(b"x\xff"))
    assert CliRunner().invoke(app, ["report", "--folder", str(tmp_path / "runs")], catch_exceptions=False).exit_code == 0


@pytest.mark.parametrize("name", ["spec.toml", "provenance.json"])
def test_a_huge_file_in_place_of_a_text_is_not_read(tmp_path, name):
    """It has holes, so that it takes no room on the disk."""
    trained(tmp_path)
    shutil.copytree(tmp_path / "small", tmp_path / "other")
    os.truncate(tmp_path / "small" / name, 2**33)
    began = time.monotonic()
    listed = CliRunner().invoke(app, ["list", "--folder", str(tmp_path)], catch_exceptions=False).output
    assert "other" in listed
    assert time.monotonic() - began < 20
    if name == "spec.toml":
        found = CliRunner().invoke(app, ["run", str(tmp_path / "small" / name)]).exception
        assert "at most 0.06 GiB of such a file are read" in str(found)


@pytest.mark.parametrize("kind", ["declared", "elsewhere"])
def test_a_whole_result_with_a_variable_that_is_too_large_or_in_another_file_is_refused(tmp_path, kind):
    shutil.copytree(Path(__file__).parents[1] / "docs" / "results" / "lqr-random-abq", tmp_path / "run")
    (tmp_path / "secret").write_bytes(np.arange(20.0).tobytes())
    n = 2 * 10**8 if kind == "declared" else 20
    with h5py.File(tmp_path / "run" / "result.nc", "a") as file:
        stored = {"chunks": (10**6,), "compression": "gzip"} if kind == "declared" else {"external": [(str(tmp_path / "secret"), 0, 160)]}
        variable = file.create_dataset("extra", (n,), "f8", **stored)
        axis = file.create_dataset("big", (n,), "i1", chunks=(min(n, 10**6),))
        axis.make_scale("big")
        variable.dims[0].attach_scale(axis)
    found = CliRunner().invoke(app, ["show", "run", "--folder", str(tmp_path)]).exception
    assert isinstance(found, offspan.OffspanError)
    assert ("bytes that declare" if kind == "declared" else "other files") in str(found)


def test_the_versions_that_are_known_to_fail_are_excluded():
    """With typer 0.15.0 to 0.15.3 `--help` fails, and pandas 2.2.0 conflicts with NumPy 2."""
    needed = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["dependencies"]
    least = {name: tuple(map(int, version.split("."))) for name, _, version in (one.partition(">=") for one in needed)}
    assert least["typer"] >= (0, 15, 4)
    assert least["pandas"] >= (2, 2, 2)
    assert least["numpy"] >= (2, 2)
