import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

import offspan
from offspan import cli, terminal
from offspan.experiments.store import RunFolder

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SPEC = """
systems = ["identity", "shift", "gaussian"]
dim = [4]
horizon = [4]
seen = [1, 2]
seeds = [0, 1, 2]
learning_rate = [0.01]
iterations = 3000
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from offspan.cli import main; main()", *arguments]


def offspan_command(*arguments: str, cwd) -> subprocess.CompletedProcess:
    """The command in a process of its own, as a person runs it."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=cwd, env={**os.environ, "COLUMNS": "80"})


def printed(*arguments: str) -> str:
    """What the command prints, in this process, which has jax at hand."""
    done = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def test_a_spec_of_ones_own_from_the_first_run_to_its_table(tmp_path):
    """run, list, show, show --csv; the identity's measures are 1 after any number of iterations."""
    (tmp_path / "mine.toml").write_text(SPEC)
    done = offspan_command("run", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "…" not in done.stdout.replace("drawing …", ""), "the table does not fit 80 columns"  # said where that takes seconds
    figures = tmp_path / "runs" / "mine" / "figures"
    names = {"measures.png", "measures.pdf", "measures.csv", "curves.png", "curves.pdf", "curves.csv", "table.md", "table.tex"}
    assert {path.name for path in figures.iterdir()} == names
    data = pd.read_csv(figures / "measures.csv").set_index("system")
    assert len(data) == 3 * 2
    assert (data.loc["identity", ["normalized_optimality", "normalized_cost"]] - 1).abs().max(axis=None) < 1e-12
    assert (data.loc["shift", "normalized_optimality"] < 1).all()
    where = ["--folder", str(tmp_path / "runs")]
    listed = printed("list", *where)
    assert "lqr-long-horizon" in listed
    assert "complete" in listed
    assert printed("show", "mine", "--csv", *where) == (figures / "measures.csv").read_text()
    assert "gaussian" in printed("show", "mine", *where)


def test_quick_presets_say_so(tmp_path):
    done = offspan_command("reproduce", "lqr-random-abq", "--quick", "--seeds", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "lqr-random-abq-2-seeds-quick" in done.stdout
    assert "Drawn alone: for the comparison with lqr-2-seeds-quick, reproduce that first." in done.stdout


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path):
    (tmp_path / "long.toml").write_text(SPEC.replace("3000", "4000000"))
    process = subprocess.Popen(command("run", "long.toml"), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    folder = RunFolder(tmp_path / "runs" / "long")
    while process.poll() is None and not folder.checkpoints.exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "what was done of long is kept, and the same command resumes from there" in errors
    assert "Traceback" not in errors
    share = folder.share_done()
    assert 0 < share < 1
    where = ["--folder", str(tmp_path / "runs")]
    assert f"{share:.0%} done" in printed("list", *where)
    (folder.checkpoints / "dim-4-horizon-4.npz").write_bytes(b"cut short")
    assert "cannot be read" in printed("list", *where)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_run_that_is_told_to_end_leaves_a_checkpoint(tmp_path, sent, code):
    """A cluster sends SIGTERM before it kills, and a terminal that is closed SIGHUP."""
    (tmp_path / "long.toml").write_text(SPEC.replace("3000", "4000000"))
    heard = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"  # the tests may run under nohup
    started = [sys.executable, "-c", f"{heard}; from offspan.cli import main; main()", "run", "long.toml"]
    process = subprocess.Popen(started, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    folder = RunFolder(tmp_path / "runs" / "long")
    while process.poll() is None and not folder.checkpoints.exists():
        time.sleep(0.05)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert errors == "offspan: stopped; what was done of long is kept, and the same command resumes from there.\n"
    assert 0 < folder.share_done() < 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_output_without_the_papers_symbols(tmp_path, encoding):
    """`list` and `show` print ∇ and ×: an encoding that lacks them gets plain characters. `python -m offspan.cli` is the command."""
    for arguments in (["list"], ["show", "lqr-random-abq", "--folder", str(RESULTS)]):
        module = [sys.executable, "-m", "offspan.cli", *arguments]
        done = subprocess.run(module, cwd=tmp_path, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding})
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.decode(encoding)) > 500


def test_a_run_whose_output_lacks_the_papers_symbols_draws_its_figures(tmp_path):
    (tmp_path / "short.toml").write_text(SPEC.replace("3000", "30"))
    module = [sys.executable, "-m", "offspan.cli", "run", "short.toml"]
    done = subprocess.run(module, cwd=tmp_path, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "short" / "figures" / "measures.png").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_output_that_is_full_loses_no_result(tmp_path):
    (tmp_path / "short.toml").write_text(SPEC.replace("3000", "30"))
    with Path("/dev/full").open("w") as full:
        module = [sys.executable, "-m", "offspan.cli", "run", "short.toml"]
        done = subprocess.run(module, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    assert RunFolder(tmp_path / "runs" / "short").is_complete()


def test_verify_prints_writes_and_tells_by_its_exit_code(tmp_path, monkeypatch):
    done = offspan_command("verify", "prop:shift", "lem:min_norm", "--dim", "4", "--horizon", "8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0.129630" in done.stdout
    assert "9 of 9 claims hold." in done.stdout
    assert "verify: 100 %" in done.stdout  # its progress, in a pipe
    stored = json.loads((tmp_path / "runs" / "verify" / "some-claims.json").read_text())
    assert stored["settings"] == {"dim": 4, "horizon": 8, "seeds": 5}
    assert {claim["label"] for claim in stored["claims"]} == {"prop:shift", "lem:min_norm"}
    assert {claim["verdict"] for claim in stored["claims"]} == {"holds"}
    assert "## Lemma 1: `lem:min_norm`" in (tmp_path / "runs" / "verify" / "some-claims.md").read_text()
    listed = CliRunner().invoke(cli.app, ["verify", "--list"]).output
    assert all(label in listed for label in ("prop:shift", "thm:typical_system"))
    monkeypatch.setattr("offspan.theory.closed_forms.shift_bound", lambda dim, horizon: 0.0)
    failed = CliRunner().invoke(cli.app, ["verify", "prop:shift", "--seeds", "1", "--folder", str(tmp_path / "failing")])
    assert failed.exit_code == 1
    assert "failing: prop:shift" in failed.output
    assert "FAILS" in (tmp_path / "failing" / "verify" / "some-claims.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["verify", "prop:shfit"], "there is no statement 'prop:shfit' (did you mean 'prop:shift'?)"),
        (["verify", "prop:shift", "--dim", "100000"], "verify: `dim` is 100,000, but must be at most 10,000."),
        (["verify", "lem:min_norm", "--dim", "10000", "--horizon", "1000000"], "need about"),
        (["verify", "lem:min_norm", "--seeds", "100000000"], "verify: `seeds` is 100,000,000, but must be at most 100,000."),
        (["verify", "prop:shift", "--horizon", "7"], "prop:shift: the printed statement needs a horizon divisible by"),
        (["reprodce"], "Did you mean 'reproduce'?"),
        (["reproduce"], "name the presets to reproduce (`offspan list` shows them), or say --all."),
        (["reproduce", "lqr-larg"], "there is no preset 'lqr-larg' (did you mean 'lqr-large'?)"),
        (["reproduce", "lqr", "--folder", "taken"], "taken"),
        (["run", "nothing.toml"], "there is no file 'nothing.toml'."),
        (["show", "nothing"], "there is no run 'nothing' in runs."),
        (["list", "--folder", "taken"], "taken is a file, where a folder of runs is expected"),
        (["lab", "runs/nothing"], "there is no run 'runs/nothing' in runs."),
    ],
)
def test_a_persons_mistake_is_exit_code_2_without_a_traceback(tmp_path, monkeypatch, capsys, arguments, sentence):
    (tmp_path / "taken").write_text("a file where a folder is wanted")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["offspan", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert sentence in errors
    assert "Traceback" not in errors
    assert (tmp_path / "taken").read_text() == "a file where a folder is wanted"


def test_version():
    assert CliRunner().invoke(cli.app, ["--version"]).output == f"offspan {offspan.__version__}\n"


@pytest.mark.parametrize("width", [30, 80, 200])
def test_labels_of_statements_are_whole_at_any_width(width):
    """Also in a pipe, where nothing can be scrolled: a label is folded, never cut."""
    from rich.console import Console

    from offspan.report.theory import terminal_claims
    from offspan.theory.claims import Claim, Settings

    label = "prop:a_label_that_is_longer_than_a_narrow_terminal"
    claims = [Claim("what was measured, in rather many words", 1.5, "=", 1.5, 1e-6, "a loop", label)]
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(terminal_claims(claims, Settings(5, 10, 5)))
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert label in text.replace("\n", "")
    assert "…" not in text
    assert "holds" in text


SIGNALLED = """
import os, signal, sys
import offspan_command

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background
module = sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
offspan_command.main()
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [("offspan", "; nothing was done yet"), ("jax", "; nothing was done yet"), ("xarray.backends", "")],
)
def test_ctrl_c_while_importing_is_one_sentence(tmp_path, module, said):
    """Before the command line is there, in what it imports first, and in what it imports when it is needed."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, module, "show", "none"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"offspan: stopped{said}.\n")


UNANSWERED = """
import hashlib, os, signal, threading, time
from offspan import terminal

terminal.PATIENCE = 0.2
terminal.Stopped.listen()
with terminal.progress_of("long", lambda: "what was done of long is kept"):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes, in which Python runs no handler: as in a compiler
"""


def test_a_signal_is_answered_within_seconds_also_where_python_does_not_hear_it():
    done = subprocess.run([sys.executable, "-c", UNANSWERED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (143, "offspan: stopped; what was done of long is kept.\n")


AGAIN = """
import gc, signal
from offspan import terminal

class Finaliser:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

terminal.Stopped.listen()
try:
    with terminal.progress_of("long", lambda: "nothing was done yet") as progress:
        Finaliser()  # Python drops what is raised in it
        signal.raise_signal(signal.SIGINT)
        progress(0.5)
except terminal.typer.Exit as ended:
    signal.raise_signal(signal.SIGINT)
    print(ended.exit_code)
"""


def test_a_second_signal_changes_nothing_and_a_lost_one_is_found():
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "offspan: stopped; nothing was done yet.\n")
    assert done.stdout == "130\n"


@pytest.mark.parametrize("output", ["None", "open('/dev/full', 'w')"])
def test_a_command_that_was_stopped_says_so_by_its_exit_code_also_without_an_output(output):
    stopped = f"import sys; from offspan.terminal import Stopped; sys.stdout = {output}; Stopped.by = 15"
    ended = f"{stopped}; sys.stdout and sys.stdout.write('a line'); Stopped.leave()"
    done = subprocess.run([sys.executable, "-c", ended], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (143, "")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([], "nothing was done yet"),
        (["checkpoint/.a1b2c3d4.training.npz"], "nothing was done yet"),
        (["checkpoint/training.npz"], "what was done of mine is kept, and the same command resumes from there"),
        (["result.nc"], "the result of mine is kept, and the same command draws it"),
    ],
)
def test_only_what_is_true_is_said_of_what_is_kept(tmp_path, monkeypatch, made, said):
    def interrupted(spec, folder, *_, **__):
        for name in made:
            path = folder / spec.name / name
            path.parent.mkdir(parents=True)
            path.write_text("")
        raise KeyboardInterrupt

    (tmp_path / "mine.toml").write_text(SPEC)
    monkeypatch.setattr("offspan.experiments.run.run", interrupted)
    monkeypatch.setattr(terminal.Stopped, "told", False)
    done = CliRunner().invoke(cli.app, ["run", str(tmp_path / "mine.toml"), "--folder", str(tmp_path)])
    assert done.exit_code == 130
    assert f"offspan: stopped; {said}.\n" in done.output


def test_a_result_is_said_to_be_kept_where_its_drawing_is_stopped(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "result.nc").write_text("")
    (tmp_path / "mine.toml").write_text(SPEC)
    monkeypatch.setattr("offspan.experiments.run.run", lambda *_, **__: None)
    monkeypatch.setattr("offspan.report.results.report", interrupted)
    monkeypatch.setattr(terminal.Stopped, "told", False)
    done = CliRunner().invoke(cli.app, ["run", str(tmp_path / "mine.toml"), "--folder", str(tmp_path)])
    assert done.exit_code == 130
    assert "offspan: stopped; the result of mine is kept, and the same command draws it.\n" in done.output


def test_a_large_run_is_announced(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "mine.toml").write_text(SPEC)
    monkeypatch.setattr("offspan.experiments.run.run", interrupted)
    monkeypatch.setattr(terminal.Stopped, "told", False)
    run = lambda: CliRunner().invoke(cli.app, ["run", str(tmp_path / "mine.toml"), "--folder", str(tmp_path)]).output  # noqa: E731
    assert "about" not in run()
    monkeypatch.setattr("offspan.experiments.estimate.WORTH_SAYING", (0.0, 0.0))  # bytes, seconds
    assert run().startswith("mine: 10 runs, about ")


def test_brackets_are_no_markup_in_a_terminal_either(monkeypatch):
    """Of a spec's file, say, or of a folder."""
    shown = io.StringIO()
    monkeypatch.setattr(terminal, "console", Console(markup=False, force_terminal=True, file=shown, width=80))
    with terminal.progress_of("a[/b]", str) as progress:
        progress(0.5, "c[/d]")
    with terminal.status("e[/f]") as update:
        update("g[/h]")
    assert all(name in shown.getvalue() for name in ("a[/b]", "g[/h]"))


def test_progress_in_a_pipe_is_plain_lines_from_time_to_time(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.02)

    def heard(line: str) -> str:
        said, ends = "", time.monotonic() + 60
        while line not in said:
            assert time.monotonic() < ends, f"nothing but {said!r} is said"
            time.sleep(0.01)
            said += capsys.readouterr().out
        return said

    with terminal.progress_of("mine", str) as progress:
        progress(0.25, "mine: training")
        assert "\x1b" not in heard("mine: training: 25 %, ")
    assert re.search(r"mine: 100 %, \d+ s\n$", capsys.readouterr().out)
    with terminal.status("drawing …") as update:
        update("drawing [x] …")
        heard("drawing [x] …\n")


def test_forty_columns_are_enough_for_names(monkeypatch):
    monkeypatch.setattr(terminal.console, "_width", 40)
    shown = CliRunner().invoke(cli.app, ["show", "lqr-random-abq", "--folder", str(RESULTS)]).output
    assert "gaussian-abq" in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 40
    listed = CliRunner().invoke(cli.app, ["list", "--folder", str(RESULTS)]).output
    assert "gaussian-abq" in listed
    assert "lqr-random-abq" in listed.partition("Runs in")[2].replace("\n", "")
    assert max(map(len, listed.splitlines())) <= 40
