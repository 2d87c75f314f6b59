"""Tasks on a cluster of real processes: the same bits as here, whatever is killed, and one sentence for what cannot run there."""

import contextlib
import io
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.config
import numpy as np
import psutil
import pytest

from offspan import cli
from offspan.errors import OffspanError
from offspan.experiments import cluster, worker
from offspan.experiments.checkpoints import Checkpoint, pack, unpack
from offspan.experiments.cluster import Dask, is_exposed
from offspan.experiments.executor import Here
from offspan.experiments.parts import joined
from offspan.experiments.registry import kind, load_preset, load_spec
from offspan.experiments.run import Experiment, _Stored, run
from offspan.experiments.spec import Spec
from offspan.experiments.store import RunFolder
from offspan.experiments.verifying import verify_on
from offspan.theory.claims import Settings
from offspan.theory.verify import verify

SWEEP = """
systems = ["identity", "gaussian"]
dim = [3]
horizon = [3, 4]
seen = [1, 2]
seeds = 3
learning_rate = [0.01]
iterations = 2500
seeds_per_task = 1
"""
NETWORK = """
kind = "network"
problem = "pendulum"
settings = { horizon = 10 }
seeds = [0, 1, 2]
baseline_seeds = [0, 1]
iterations = 300
evaluate_every = 50
patience = 1
gain = 0.02
precision = "float32"
width = 8
seen_states = [[2.6, 0.0], [3.6, 0.0]]
unseen_states = [[1.57, 0.0], [4.71, 0.0]]
policy_gradient = { optimizer = "gradient-descent", learning_rate = 5e-4 }
minimal_cost = { optimizer = "adam", learning_rate = 3e-3 }
non_extrapolating = { optimizer = "adam", learning_rate = 3e-3, targets = [[0.0, 0.0]] }
"""
SELECTION = """
kind = "selection"
problem = "gaussian"
dim = 3
horizon = 3
seeds = 3
choose = 1
iterations = 400
pilot_iterations = 20
methods = ["farthest", "alignment"]
policy_gradient = { optimizer = "gradient-descent", learning_rate = 1e-2 }
"""
SYSTEM = """
seen_states = [[0.1, 0.0]]
[system]
"""


def spec_of(folder: Path, text: str, name: str = "one") -> Spec:
    (folder / f"{name}.toml").write_text(text)
    return load_spec(folder / f"{name}.toml")


def ignore(*_: Any) -> None: ...


def said(call: Any, *arguments: Any) -> str:
    """The one sentence that the call ends with."""
    with pytest.raises(OffspanError) as raised:
        call(*arguments)
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence


@pytest.fixture(scope="module")
def whole_network(tmp_path_factory):
    """The spec, and its result without a cluster."""
    folder = tmp_path_factory.mktemp("whole")
    spec = spec_of(folder, NETWORK)
    return spec, run(spec, folder, ignore)


@pytest.fixture(scope="module")
def two_workers():
    sentences: list[str] = []
    with Dask("local:2", say=sentences.append) as executor:
        executor.sentences = sentences  # pyright: ignore[reportAttributeAccessIssue]
        yield executor


def test_the_cores_and_gpus_of_a_machine_are_shared_out():
    assert worker.environments(2, [0, 1, 2, 3, 7], []) == [
        {"NPROC": "3", "OFFSPAN_CORES": "0,2,7"},
        {"NPROC": "2", "OFFSPAN_CORES": "1,3"},
    ]
    assert [one["OFFSPAN_CORES"] for one in worker.environments(5, [4, 6], [])] == ["4", "6", "4", "6", "4"]
    assert worker.environments(4, [0, 1, 2, 3], ["0", "2"]) == [
        {"NPROC": "2", "OFFSPAN_CORES": "0,2", "CUDA_VISIBLE_DEVICES": "0"},
        {"NPROC": "2", "OFFSPAN_CORES": "1,3", "CUDA_VISIBLE_DEVICES": "2"},
    ]


def test_gpus_are_those_that_jax_could_use(monkeypatch):
    class Plugin:
        name = "xla_cuda13"

    monkeypatch.setattr(cluster.importlib.metadata, "entry_points", lambda group: [Plugin] if group == "jax_plugins" else [])
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for variable, gpus in (("0,3", ["0", "3"]), ("", []), ("-1", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
        assert cluster.visible_gpus() == gpus
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert cluster.visible_gpus() == []
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    assert cluster.visible_gpus() == ["0", "3"]
    monkeypatch.setattr(cluster.importlib.metadata, "entry_points", lambda group: [])  # a jax for the CPU
    assert cluster.visible_gpus() == []


def is_the_same(found: Any, expected: Any, rtol: float) -> None:
    assert {name: found[name].dims for name in found.variables} == {name: expected[name].dims for name in expected.variables}
    for name, variable in expected.variables.items():
        if variable.dtype.kind in "fiu":
            np.testing.assert_allclose(found[name], variable, rtol=rtol, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("text", "tasks"), [(SWEEP, 4), (SELECTION, 5)])
def test_seeds_shared_out_over_tasks_are_the_same_experiment(tmp_path, text, tasks):
    whole = spec_of(tmp_path, text.replace("seeds_per_task = 1\n", ""), "whole")
    split = whole.with_seeds_per_task(2)
    assert split.name == "whole-2-a-task"
    assert len(kind(split.kind).tasks(split)) == tasks
    assert split.digest() != whole.model_copy(update={"name": split.name}).digest()
    is_the_same(run(split, tmp_path, ignore), run(whole, tmp_path, ignore), rtol=1e-9)


def test_so_are_seeds_of_networks(tmp_path, whole_network):
    whole, expected = whole_network
    split = whole.with_seeds_per_task(2)
    assert [task.name for task in kind("network").tasks(split)] == [
        *("policy_gradient-part-0", "policy_gradient-part-1", "non_extrapolating-part-0", "minimal_cost-part-0")
    ]
    is_the_same(run(split, tmp_path, ignore), expected, rtol=1e-4)


def test_parts_with_fewer_records_are_filled_up():
    """The batch of a part ends when its last run has, so that its records may end sooner, or have no last one."""

    def part(recorded: list[int], *cost: list[float]) -> dict[str, np.ndarray]:
        runs = len(cost)
        arrays: dict[str, Any] = {"recorded": recorded, "cost": cost, "codes": [0] * runs, "iterations": [9] * runs, "done": 25, "since": 0}
        return {name: np.asarray(value) for name, value in arrays.items()} | {"weights.0": np.zeros((runs, 2, 3)), "carried.0": np.zeros(1)}

    found = joined([part([0, 10], [8.0, 7.0], [6.0, 5.0]), part([0, 10, 20], [4.0, 3.0, 2.0]), part([0, 25], [9.0, 1.0])])
    nan = np.nan
    np.testing.assert_array_equal(found["recorded"], [0, 10, 20, 25])
    np.testing.assert_array_equal(found["cost"], [[8.0, 7.0, nan, nan], [6.0, 5.0, nan, nan], [4.0, 3.0, 2.0, nan], [9.0, nan, nan, 1.0]])
    assert (found["weights.0"].shape, found["codes"].shape, int(found["done"])) == ((4, 2, 3), (4,), 25)


def test_specs_without_the_key_are_what_they_were():
    """Digests as they were before there was `seeds_per_task`, so that stored runs are found complete."""
    assert load_preset("lqr").digest() == "f559406557fd34af16447510cbccc4b1da7c480c28433564b42a44188be5c214"
    assert load_preset("pendulum").digest() == "95fed71186edca2489d03ac5cd851892d36a3257337104444b1bc221c1b4af8f"


def test_what_is_sent_comes_back_to_the_bit_or_is_refused():
    sent = Checkpoint({"x": np.array([0.1, np.nan, -0.0])}, 0.5, 1.25, {"host": "a"})
    content = pack(sent, "of this spec")
    back = unpack(content, "of this spec")
    np.testing.assert_array_equal(back.arrays["x"].view(np.uint8), sent.arrays["x"].view(np.uint8))
    assert back[1:] == sent[1:]
    assert said(unpack, content, "of another") == "it belongs to another spec"
    assert "what was sent is not an .npz file" in said(unpack, content[:-40], "of this spec")
    altered = dict(np.load(io.BytesIO(content)))
    altered["x"][0] = np.nextafter(0.1, 1.0)
    np.savez(file := io.BytesIO(), **altered)  # a whole file, but for the last bit of one number
    assert said(unpack, file.getvalue(), "of this spec") == "it is not as it was written"


def test_the_same_bits_as_here(tmp_path, two_workers, whole_network):
    """Networks in single precision, whose bits depend on the number of jax's devices."""
    spec, expected = whole_network
    shares: list[float] = []
    doing: list[str] = []
    found = run(spec, tmp_path / "there", shares.append, executor=two_workers, doing=doing.append)
    assert found.identical(expected)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert doing[-1].startswith("3 of 3 tasks, ")
    (place,) = RunFolder(tmp_path / "there" / "one").provenance()["tasks"]
    assert set(place["seconds"]) == {"policy_gradient", "non_extrapolating", "minimal_cost"}
    assert place["processor"]
    assert sorted(path.name for path in (tmp_path / "there" / "one").iterdir()) == ["provenance.json", "result.nc", "spec.toml"]


def test_a_worker_that_is_killed_has_its_task_run_again(tmp_path, two_workers):
    spec = spec_of(tmp_path, SWEEP)
    killed = []

    def kill(share: float) -> None:
        checkpoints = tmp_path / "there" / "one" / "checkpoint"
        if not killed and 0.1 < share < 0.9 and checkpoints.exists():
            killed.append(two_workers._cluster.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    found = run(spec, tmp_path / "there", kill, executor=two_workers)
    assert killed
    assert found.identical(run(spec, tmp_path / "here", ignore))


def test_what_is_finished_is_not_run_again(tmp_path, two_workers):
    spec = spec_of(tmp_path, SELECTION)
    checkpoints = tmp_path / "there" / "one" / "checkpoint"

    def interrupt(share: float) -> None:
        if len(list(checkpoints.glob("[!.]*"))) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path / "there", interrupt, executor=two_workers)
    written = {path.name: path.stat().st_mtime_ns for path in checkpoints.iterdir()}
    assert len(written) >= 2

    def unchanged(share: float) -> None:
        if checkpoints.exists():
            assert {name: (checkpoints / name).stat().st_mtime_ns for name in written} == written

    assert run(spec, tmp_path / "there", unchanged, executor=two_workers).identical(run(spec, tmp_path / "here", ignore))


def test_a_task_that_was_begun_with_other_versions_is_said_there_too(tmp_path):
    sentences, spec = [], spec_of(tmp_path, SWEEP)
    executor = Dask("tcp://127.0.0.1:1", say=sentences.append)
    executor._client = SimpleNamespace(submit=lambda *_, **__: SimpleNamespace(add_done_callback=ignore))
    tasks = kind(spec.kind).tasks(spec)
    kept = {tasks[0].name: Checkpoint({"x": np.zeros(1)}, 0.5, 1.0, {"versions": "jax 0.1"})}
    cluster._Tasks(executor, Experiment(spec), tasks, kept, ignore)._submit(tasks[0])
    assert len(sentences) == 1
    assert f"{tasks[0].name} was begun with jax 0.1 and goes on with" in sentences[0]


def test_ctrl_c_of_the_terminal_ends_all_with_one_sentence(tmp_path):
    """It goes to the workers, too; here while they are started."""
    (tmp_path / "long.toml").write_text(SWEEP.replace("2500", "100_000_000"))
    started = [sys.executable, "-c", "from offspan.cli import main; main()", "run", "long.toml", "--cluster", "local:2"]
    process = subprocess.Popen(started, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (workers := [one for one in psutil.Process(process.pid).children() if "spawn_main" in " ".join(one.cmdline())]):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors == "offspan: stopped; nothing was done yet.\n"
    assert not psutil.wait_procs(workers, timeout=30)[1]


def test_statements_are_verified_there_in_the_same_order(two_workers):
    labels = ("prop:shift", "lem:shift_Kpg_K2")
    claims = verify_on(two_workers, labels, Settings(4, 8, 2), ignore)
    assert claims == list(verify(labels, Settings(4, 8, 2))) == verify_on(Here(), labels, Settings(4, 8, 2), ignore)
    assert len(claims) > 2


def test_a_sentence_of_a_task_is_the_clients_sentence(two_workers):
    assert said(verify_on, two_workers, ("prop:shift",), Settings(5, 7, 1), ignore).startswith("prop:shift: the printed statement needs")


def test_a_worker_with_another_version_refuses(tmp_path, two_workers, monkeypatch):
    monkeypatch.setattr(cluster, "versions", lambda: {**worker.versions(), "jaxlib": "0.0.1"})
    sentence = said(run, spec_of(tmp_path, SWEEP), tmp_path, ignore, 10.0, two_workers)
    assert sentence.startswith("the worker tcp://127.0.0.1:")
    assert sentence.endswith(f"has jaxlib {worker.versions()['jaxlib']}, but this process has 0.0.1; results would differ, so install the "
                             "same on both.")  # fmt: skip
    import distributed.versions

    ours = distributed.versions._version_cached
    monkeypatch.setattr(distributed.versions, "_version_cached", lambda name: "9.9" if name == "offspan" else ours(name))
    assert "has offspan" in said(two_workers._check_versions)
    monkeypatch.setattr(distributed.versions, "_version_cached", ours)
    two_workers._check_versions()
    found = two_workers._client.get_versions(packages=worker.versions())
    found["scheduler"]["packages"]["distributed"] = "2020.1.0"
    monkeypatch.setattr(two_workers._client, "get_versions", lambda packages: found)
    assert said(two_workers._check_versions).startswith("the scheduler has distributed 2020.1.0, but this process has")


def test_a_worker_that_has_other_devices_refuses(two_workers, monkeypatch):
    verify_on(two_workers, ("lem:shift_Kpg_K2", "prop:shift"), Settings(5, 10, 1), ignore)  # both have started jax
    monkeypatch.setattr(cluster, "devices", lambda: 3)
    assert "has started jax with 2 CPU devices, but this process has 3" in said(verify_on, two_workers, ("prop:shift",), Settings(), ignore)


def test_a_task_that_ends_every_worker_is_given_up_by_name(tmp_path, two_workers, monkeypatch):
    verify_on(two_workers, ("lem:shift_Kpg_K2",), Settings(), ignore)  # there is a cluster
    monkeypatch.setattr(two_workers._cluster.scheduler, "allowed_failures", 0)
    spec = spec_of(tmp_path, SWEEP.replace("2500", "100_000_000").replace("[3, 4]", "[3]").replace("seeds_per_task = 1", ""))

    def kill(share: float) -> None:
        if share > 0:
            for pid in [one.pid for one in two_workers._cluster.workers.values() if one.pid]:  # none while it is started anew
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    sentence = said(run, spec, tmp_path, kill, 10.0, two_workers)
    assert sentence.startswith("dim-3-horizon-3 was given up, since worker after worker ended while it ran")


def test_a_bug_comes_back_with_its_traceback():
    asked = json.dumps({"run": "", "versions": worker.versions(), "devices": worker.devices(), "needs": []})
    told = worker.perform("tcp://worker", "Verification", json.dumps({"settings": {}, "by_name": True}), "no such", asked, [b""], ignore)
    assert isinstance(told, str)
    assert "KeyError: 'no such'" in json.loads(told)["traceback"]


def test_nobody_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "TIMEOUT", 0.3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with Dask(address, say=str) as executor:
        sentence = said(run, spec_of(tmp_path, SWEEP), tmp_path, ignore, 10.0, executor)
    assert sentence.startswith(f"--cluster: no scheduler answers at {address} (")


def test_a_cluster_that_was_lost_is_told_with_what_is_kept(tmp_path):
    """A scheduler that is gone answers nothing. What is kept on disk is there for the same command; claims are not."""

    def unanswered(*_: Any, **__: Any) -> None:
        raise OSError("Timed out")

    dask = Dask("tcp://localhost:8786", say=str)
    dask._client = SimpleNamespace(scheduler=SimpleNamespace(ncores=None), sync=unanswered)
    spec = spec_of(tmp_path, SWEEP)
    stored: Any = _Stored(RunFolder(tmp_path / "one"), spec)
    for kept, then in ((stored, "finished tasks are kept, and the same command resumes from there."), ({}, "run the command again.")):
        tasks = cluster._Tasks(dask, Experiment(spec), kind("lqr").tasks(spec), kept, ignore)
        assert said(tasks.finish, set()) == f"the cluster tcp://localhost:8786 was lost; {then}"


def test_something_listens_that_is_no_scheduler(tmp_path, monkeypatch):
    """As at the wrong end of a tunnel: the connection is accepted, and then nothing is said."""
    monkeypatch.setattr(cluster, "TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, Dask(f"tcp://127.0.0.1:{silent.getsockname()[1]}", say=str) as executor:
        sentence = said(run, spec_of(tmp_path, SWEEP), tmp_path, ignore, 10.0, executor)
    assert sentence.endswith("(no answer within 0.5 s); is it running?"), sentence


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("local", "--cluster is 'local', but must be local:4 (workers here), tcp://host:8786, or the path of a scheduler file."),
        ("local:0", "--cluster is 'local:0', but must be"),
        ("http://host", "--cluster is 'http://host', but must be"),
        ("empty.json", "--cluster: empty.json is not a scheduler file of Dask (JSON with an `address`)."),
        (".", "--cluster: . is not a scheduler file"),
        ("tcp://localhost", "--cluster is 'tcp://localhost', but must be a host and a port, such as tcp://host:8786 or tls://host:8786."),
        ("tcp://localhost:abc", "--cluster is 'tcp://localhost:abc', but must be a host and a port"),
        ("tcp://localhost:99999", "--cluster is 'tcp://localhost:99999', but must be a host and a port"),
        ("tcp://:8786", "--cluster is 'tcp://:8786', but must be a host and a port"),
        ("tcp://localhost:8786/", "--cluster is 'tcp://localhost:8786/', but must be a host and a port"),
        ("tcp://[::1", "--cluster is 'tcp://[::1', but must be a host and a port"),
        ("number.json", "--cluster: the `address` in number.json is 5, but must be a host and a port"),
        ("ucx.json", "--cluster: the `address` in ucx.json is 'ucx://host:8786', but must be a host and a port"),
        ("tls://host:8786", "--cluster is 'tls://host:8786', but Dask has no certificates here: name them in its configuration"),
        (f"tcp://{'a' * 70}:8786", f"--cluster: no scheduler answers at tcp://{'a' * 70}:8786 ("),
    ],
)
def test_a_place_that_is_none(tmp_path, monkeypatch, capsys, place, sentence):
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "number.json").write_text('{"address": 5}')
    (tmp_path / "ucx.json").write_text('{"address": "ucx://host:8786"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["offspan", "verify", "prop:shift", "--cluster", place])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"offspan: {sentence}")
    assert "Traceback" not in errors
    assert not (tmp_path / "runs").exists()


def test_without_dask_there_is_no_cluster_and_all_else_is_as_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "offspan.experiments.cluster")
    monkeypatch.setattr(sys, "argv", ["offspan", "reproduce", "lqr", "--cluster", "local:2", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err.startswith("offspan: the package 'distributed' is missing: pip install 'offspan[cluster]' (")
    texts = {path.name: path.read_text() for path in Path(cli.__file__).parent.rglob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"(import|from) (dask|distributed)|extra\(.distributed", text)] == [
        "cluster.py"
    ]


def test_which_addresses_are_open_to_others(tmp_path):
    assert [is_exposed(one) for one in ("tcp://10.0.0.1:8786", "tcp://head:8786", "tls://head:8786")] == [True, True, False]
    assert not any(is_exposed(f"tcp://{host}:8786") for host in ("127.0.0.1", "localhost", "[::1]"))
    (tmp_path / "scheduler.json").write_text(json.dumps({"type": "Scheduler", "address": "tcp://10.0.0.1:8786"}))
    assert Dask(str(tmp_path / "scheduler.json"), say=str).address == "tcp://10.0.0.1:8786"


def test_code_and_files_do_not_travel(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("")
    code = spec_of(tmp_path, SYSTEM + 'factory = "mine:make"')
    code = code.model_copy(update={"system": code.system.trusted()})  # pyright: ignore[reportAttributeAccessIssue]
    for place in ("local:2", "tcp://127.0.0.1:8786"):
        with Dask(place, say=str) as executor:
            sentence = said(run, code, tmp_path, ignore, 10.0, executor)
            assert sentence == "`system` names code, 'mine:make', which no cluster is sent; run the spec without --cluster."
    (tmp_path / "model.xml").write_text("<mujoco/>")
    model = spec_of(tmp_path, SYSTEM + 'mujoco = "model.xml"\nhorizon = 5', "model")
    Experiment(model).check_travels(this_machine=True)
    assert "names a file, 'model.xml', which other machines may not have" in said(Experiment(model).check_travels, False)
    Experiment(spec_of(tmp_path, SYSTEM + 'gymnasium = "Pendulum-v1"\nhorizon = 5', "known")).check_travels(this_machine=False)


def test_kinds_that_are_not_split_by_seeds_say_so(tmp_path):
    sentence = said(load_preset("shift-regularized").with_seeds_per_task, 2)
    assert sentence == "shift-regularized is of the kind starts, whose tasks are not split by seeds; leave --seeds-per-task out."
    assert "but must be at least 1" in said(load_preset("lqr").with_seeds_per_task, 0)
    text = 'kind = "starts"\nsystem = "shift"\ndim = 3\nhorizon = 3\nstarts = 2\nstart_std = 0.1\nlearning_rate = 0.1\niterations = 1\n'
    assert "`seeds_per_task` has no effect on experiments of the kind starts; leave it out" in said(
        spec_of, tmp_path, text + "seeds_per_task = 1"
    )


FAULTS = """
import resource
from types import SimpleNamespace
import numpy as np
from offspan.experiments.worker import dask_setup

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(300):
        np.ones(2**17)  # 1 MiB
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 300

faults()
print(faults())
dask_setup(SimpleNamespace(state=SimpleNamespace(nthreads=1)))
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the malloc of glibc")
def test_a_worker_does_not_ask_for_the_same_memory_again_and_again():
    """Page faults for each array of 1 MiB: 256, one a page, with what Dask sets before it starts a worker, and none once it is set up."""
    nanny: dict[str, Any] = dask.config.get("distributed.nanny.pre-spawn-environ")
    assert "MALLOC_TRIM_THRESHOLD_" in nanny
    environment = {**os.environ, **{name: str(value) for name, value in nanny.items()}}
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, env=environment, check=True)
    before, after = map(float, done.stdout.split())
    assert before > 250
    assert after < 5
