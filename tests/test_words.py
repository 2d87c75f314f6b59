"""The words that a user reads: none about how offspan was made, none of a dialect."""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ABOUT_THE_MAKING = [
    r"with other work (beside|alongside)",
    r"(noisy|busy|shared|idle|quiet) machine",
    r"(did|does) nothing else\b",
    r"measured by hand",
    r"(a|the) second reading",
    r"measured while",
    r"(this|our|the) session",
    r"the trial that",
    r"when (we|I) (tried|looked|measured)",
    r"came later as",
    r"a checkout that was not",
    r"\bTODO\b|\bFIXME\b",
]
DIALECT = [
    r"is that sentence",
    r"tells others of",
    r"gets (a|its|one) sentence\b",
    r"to the same bits?\b",
    r"to the (last )?bit\b",
    r"changes? no bit",
    r"\bhears? (of|the)\b",
    r"takes? up such",
    r"harm from",
    r"\bput r²η",
    r"\bleaves? \d+ % of the",
    r"without (more|a) words?\b",
    r"do what (it|they) likes?",
    r"come together at",
    r"mean what they say",
    r"(and|;) says so\b(?! and)",
    r"written beside itself",
    r"gradients? (is |are )?cut\b|\bthe cut\b|\bcut at\b|cut the gradient|cutting the gradient",
    r"for a first look",
    r"\bspoilt\b",
    r"with the same bits\b",
    r"\bfor ever\b",
    r"\bstands? alone\b",
    r"overwrites? nothing but|over nothing but",
    r"all that (it|they) knows?\b",
    r"the alphabet of",
    r"of what (it|they) visits?\b",
]
PHRASES = re.compile("|".join(ABOUT_THE_MAKING + DIALECT), re.IGNORECASE)


def found(text: str) -> list[str]:
    """Phrases in a text, wherever its lines are broken."""
    return [match[0] for match in PHRASES.finditer(" ".join(text.split()))]


def docstrings(path: Path) -> str:
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return "\n".join(ast.get_docstring(node) or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, nodes))


def help_texts(path: Path) -> str:
    """What `offspan --help` prints besides docstrings: the values of help=."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.keyword) and node.arg == "help"]
    return "\n".join(str(node.value.value) for node in calls if isinstance(node.value, ast.Constant))


def read_by_users(path: Path) -> str:
    if path.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    if path.suffix == ".py":
        return docstrings(path) + ("\n" + help_texts(path) if path.name == "cli.py" else "")
    return path.read_text()


PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "notebooks").glob("*.ipynb"),
]
FILES = [path for path in [*PAGES, *(ROOT / "offspan").rglob("*.py")] if not {"generated", "results"} & set(path.parts)]


def test_there_is_something_to_read():
    assert len(FILES) > 100
    assert "Where runs are kept." in read_by_users(ROOT / "offspan" / "cli.py")
    assert "Turn the dial" in read_by_users(ROOT / "notebooks" / "turn_the_dial.ipynb")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_about_the_making_and_no_dialect(path):
    assert found(read_by_users(path)) == []


PLANTED = [
    "It took 490 s on two cores, with other\nwork beside.",
    "Interrupted runs go on to the same bits.",
    "states that training hears of",
    "a noisy machine",
    "all benchmarks in one run, on a machine that does nothing else",
    "two states chosen by the log-determinant of what they visit",
]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_phrase_is_found(planted, tmp_path):
    assert found(planted)
    module = tmp_path / "planted.py"
    module.write_text(f'def function():\n    """{planted}"""\n')
    assert found(read_by_users(module))
