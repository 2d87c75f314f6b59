import os
import subprocess
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

import offspan
from offspan import cli
from offspan.experiments import first_look


def offspan_command(*arguments: str, cwd) -> subprocess.CompletedProcess:
    """The command in a process of its own, as a person runs it."""
    command = [sys.executable, "-c", "from offspan.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "COLUMNS": "80"})


def test_reproduce_prints_the_table_and_writes_the_figure(tmp_path, monkeypatch):
    """The whole path with few iterations; the identity's measures are 1 after any number of them."""
    monkeypatch.setattr(first_look, "ITERATIONS", 30)
    done = CliRunner().invoke(cli.app, ["reproduce", "--folder", str(tmp_path / "look")], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert "identity" in done.output
    assert "…" not in done.output, "the table does not fit 80 columns"
    assert sorted(path.name for path in (tmp_path / "look").iterdir()) == ["measures.csv", "measures.pdf", "measures.png"]
    data = pd.read_csv(tmp_path / "look" / "measures.csv").set_index("system")
    assert len(data) == 3 * 4 * 5
    assert (data.loc["identity", ["normalized_optimality", "normalized_cost"]] - 1).abs().max(axis=None) < 1e-12
    assert (data.loc["shift", "normalized_optimality"] < 1).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reprodce"], "Did you mean 'reproduce'?"),
        (["reproduce", "--folder", "taken/look"], "Not a directory: 'taken/look'"),
    ],
)
def test_a_persons_mistake_is_exit_code_2_without_a_traceback(tmp_path, arguments, sentence):
    (tmp_path / "taken").write_text("a file where a folder is wanted")
    done = offspan_command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "taken").read_text() == "a file where a folder is wanted"


def test_version():
    assert CliRunner().invoke(cli.app, ["--version"]).output == f"offspan {offspan.__version__}\n"
