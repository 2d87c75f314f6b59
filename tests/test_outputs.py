"""`--output` writes where nothing is, or over what offspan wrote, and says so before the work."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offspan.cli import app
from offspan.experiments.registry import load_spec
from offspan.experiments.run import run

TRAINED = """
systems = ["shift"]
dim = [2]
horizon = [2]
seen = [1]
learning_rate = [0.1]
iterations = 2
"""
CHOOSE = TRAINED.replace("seen = [1]", "") + '[choose]\nk = 1\nmethod = "farthest"\n'
AUDIT = """
kind = "system"
seen_states = [[1.0, 0.0]]
states = 20
points = 3
[system]
problem = "pendulum"
settings = { horizon = 3 }
[region]
0 = [-1.0, 1.0]
1 = [-1.0, 1.0]
[controller]
gain = [[0.0, 0.0]]
"""
COMMANDS = {
    "select": (["select", "choose.toml"], "offspan.experiments.choosing.select"),
    "audit": (["audit", "audit.toml"], "offspan.experiments.auditing.audit"),
    "report": (["report"], "offspan.report.page.section"),
    "lab": (["lab", "--no-open"], "offspan.lab.build.page"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"trained": TRAINED, "choose": CHOOSE, "audit": AUDIT}.items():
        Path(f"{name}.toml").write_text(text)
    run(load_spec(Path("trained.toml")), Path("runs"), lambda share: None)
    Path("notes.txt").write_text("Made by offspan: what I think of it")
    Path("page.html").write_text("<!doctype html><p>mine</p>")
    os.mkfifo("pipe")
    return tmp_path


def with_output(command: str, target: str) -> str:
    """What it says."""
    done = CliRunner().invoke(app, [*COMMANDS[command][0], "--output", target])
    return str(done.exception) if done.exception is not None else ""


TARGETS = ("runs/trained/result.nc", "runs/trained/spec.toml", "trained.toml", "choose.toml", "notes.txt", "page.html", "runs", "pipe")


@pytest.mark.parametrize("command", COMMANDS)
def test_what_others_wrote_is_left_alone_and_nothing_is_begun(folder, command, monkeypatch):
    def work(*arguments, **options):
        raise AssertionError("the work was begun")

    monkeypatch.setattr(COMMANDS[command][1], work)
    before = {name: Path(name).read_bytes() for name in TARGETS if Path(name).is_file()}
    for target in TARGETS:
        assert "is there already and is no" in with_output(command, target), target
    assert "there is no folder 'nowhere'" in with_output(command, "nowhere/new.html")
    assert {name: Path(name).read_bytes() for name in before} == before
    assert "the work was begun" in with_output(command, "new")  # which is what would have been seen


@pytest.mark.parametrize("command", COMMANDS)
def test_what_offspan_wrote_is_written_over(folder, command):
    for _ in range(2):
        assert with_output(command, "new") == ""
        assert Path("new").stat().st_size > 100


def test_a_chosen_spec_is_written_over_by_another_choice_and_not_once_it_was_changed(folder):
    assert with_output("select", "new.toml") == ""
    Path("choose.toml").write_text(CHOOSE.replace("iterations = 2", "iterations = 3"))
    assert with_output("select", "new.toml") == ""
    assert load_spec(Path("new.toml")).iterations == 3
    Path("new.toml").write_text(Path("new.toml").read_text().replace("iterations = 3", "iterations = 4"))
    assert "was changed since" in with_output("select", "new.toml")
    assert load_spec(Path("new.toml")).iterations == 4


def test_the_usual_place_of_a_chosen_spec_is_looked_at_before_the_choice(folder, monkeypatch):
    Path("choose-farthest.toml").write_text("mine = 1")
    monkeypatch.setattr("offspan.experiments.choosing.select", lambda *_, **__: pytest.fail("the work was begun"))
    done = CliRunner().invoke(app, ["select", "choose.toml"])
    assert "choose-farthest.toml is there already" in str(done.exception)
