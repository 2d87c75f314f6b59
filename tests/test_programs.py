"""Compiled programs are kept between commands: the same results sooner, from no folder that others may write to."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from offspan.experiments import programs
from offspan.experiments.programs import keep_programs
from offspan.experiments.store import RunFolder

SPEC = """
systems = ["shift", "gaussian"]
dim = [3]
horizon = [4]
seen = [1, 2]
seeds = 2
learning_rate = [1e-2]
iterations = 300
"""
OPTIONS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")


def offspan(place: Path, folder: str, **environment: str) -> RunFolder:
    """The run of SPEC by a process of its own that keeps its programs in `place`/cache."""
    (place / "mine.toml").write_text(SPEC)
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))}
    done = subprocess.run(
        [sys.executable, "-c", "from offspan_command import main; main()", "run", "mine.toml", "--folder", folder],
        env={**usual, "XDG_CACHE_HOME": str(place / "cache"), "PYTHONPATH": str(Path(__file__).parents[1]), **environment},
        cwd=place,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no warning of jax's
    return RunFolder(place / folder / "mine")


def kept(place: Path) -> dict[Path, int]:
    """The programs that are kept, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in (place / "cache").rglob("*-cache")}


def test_a_second_command_loads_what_the_first_compiled_bit_for_bit(tmp_path):
    """Loaded, compiled and kept, compiled with nothing kept, and compiled again where what is kept is damaged: one result."""
    first = offspan(tmp_path, "first").load_result()
    programs_kept = kept(tmp_path)
    assert len(programs_kept) > 5
    assert offspan(tmp_path, "second").load_result().identical(first)
    assert kept(tmp_path) == programs_kept  # nothing was compiled
    for path in programs_kept:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
    assert offspan(tmp_path, "damaged").load_result().identical(first)
    assert offspan(tmp_path, "none", JAX_ENABLE_COMPILATION_CACHE="false").load_result().identical(first)


@pytest.fixture
def configuration():
    """jax as it was, afterwards."""
    before = {name: jax.config.values[name] for name in OPTIONS}
    jax.config.update("jax_compilation_cache_dir", None)
    yield lambda: jax.config.values["jax_compilation_cache_dir"]
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_folder_is_private(tmp_path, configuration):
    keep_programs(tmp_path / "cache" / "offspan")
    own = Path(configuration())
    assert own.parent == tmp_path / "cache" / "offspan"
    assert [oct(folder.stat().st_mode & 0o777) for folder in (own.parent, own)] == ["0o700", "0o700"]


def open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def link(folder: Path) -> None:
    folder.with_name("elsewhere").mkdir()
    folder.symlink_to(folder.with_name("elsewhere"))


@pytest.mark.parametrize("prepare", [open_to_all, link, Path.touch], ids=["others may write to it", "a link", "a file"])
def test_no_program_comes_from_a_folder_that_others_may_fill(tmp_path, configuration, prepare):
    prepare(tmp_path / "cache")
    keep_programs(tmp_path / "cache")
    assert configuration() is None


def test_a_folder_that_jax_was_given_stays(tmp_path, configuration):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    keep_programs(tmp_path / "cache")
    assert configuration() == str(tmp_path / "mine")
    assert not (tmp_path / "cache").exists()


def test_other_instructions_or_threads_have_other_programs(monkeypatch):
    ours = programs._machine()
    monkeypatch.setenv("NPROC", "77")
    more_threads = programs._machine()
    monkeypatch.setattr(Path, "read_text", lambda path: "flags : sse2 avx512_of_tomorrow")
    assert len({ours, more_threads, programs._machine()}) == 3


def test_the_oldest_programs_are_removed(tmp_path, configuration, monkeypatch):
    monkeypatch.setattr(programs, "MOST", 250)
    (tmp_path / "another-machine").mkdir()
    files = [tmp_path / "another-machine" / f"{name}-cache" for name in "abcd"]
    for age, path in enumerate(files):
        path.write_bytes(bytes(100))
        os.utime(path, (1_000 + age, 1_000 + age))
    keep_programs(tmp_path)
    assert [path.exists() for path in files] == [False, False, True, True]
