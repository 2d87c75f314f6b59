"""Tasks on a Dask cluster: workers of this machine, or a scheduler that somebody started. Nothing else in offspan knows of Dask.

Text and bytes travel, and nothing else of ours is pickled: a task as TOML, arrays as .npz with a checksum.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import queue
import re
import signal
import subprocess
import threading
import time
import urllib.parse
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from offspan.errors import OffspanError, extra
from offspan.experiments.checkpoints import pack, unpack
from offspan.experiments.executor import CheckpointStore, Progress, Work, is_done, say_begun_with, versions
from offspan.experiments.spec import Task
from offspan.experiments.worker import devices, difference, environments, perform
from offspan.files import excerpt, read_bytes

distributed = extra("distributed")

TOPIC = "offspan"  # of the events by which workers tell how far they are
TIMEOUT = 10.0  # seconds that a scheduler has to answer
SILENCE = 60.0  # seconds after which one that has answered before, and may be busy, is taken for lost
TELL_EVERY = 1.0  # seconds, at least
FAILURES = 5  # workers that a task may lose before it is given up


class Dask:
    """Tasks on a cluster, which is started or connected to when the first task is there: `local:4`, tcp://host:8786, a scheduler file.

    `say` is called with sentences for the person who waits.
    """

    def __init__(self, place: str, say: Callable[[str], Any]):
        self.place, self.say = place, say
        self.workers, self.address = _read_place(place)
        self._gpus = visible_gpus() if self.address is None else []
        if self._gpus:  # this process computes little; by default it would take most of the memory of the GPU that a worker has
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self._cluster: Any = None
        self._client: Any = None
        self._told: deque[dict[str, Any]] = deque()

    def __enter__(self) -> "Dask":
        return self

    def __exit__(self, *_: Any) -> None:
        """What still runs is left alone: workers give up tasks that nobody waits for."""
        for part in (self._client, self._cluster):
            if part is not None:
                with contextlib.suppress(Exception):  # of a cluster that has gone
                    part.close(timeout=2)

    def run(self, work: Work, tasks: Sequence[Task], kept: CheckpointStore, progress: Progress) -> None:
        """Workers that end unexpectedly are replaced, and their tasks run again."""
        work.check_travels(this_machine=self.address is None)
        done = {task.name for task in tasks if is_done(kept.get(task.name))}
        if len(done) < len(tasks):
            self._connect(lambda doing: progress(_share(tasks, done, {}), doing))
            _Tasks(self, work, tasks, kept, progress).finish(done)

    def _connect(self, doing: Callable[[str], Any]) -> None:
        if self._client is not None:
            return
        for name in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]:
            logging.getLogger(name).setLevel(logging.CRITICAL)  # Dask logs lost workers at length; we print one line
        if self.address is None:
            doing(f"starting {self.workers} workers")
            with _without_interrupts():
                self._cluster, self.workers = _start(self.workers, self._gpus, self.say)
        elif is_exposed(self.address):
            self.say(
                f"{self.address} is neither on this machine nor encrypted: Dask runs what it is sent, so that whoever reaches that port "
                "can run code on the workers and here; use tls://, or an SSH tunnel to localhost."
            )
        try:
            if self.address is not None:
                with ThreadPoolExecutor(1) as aside:  # in a notebook, this thread has a loop that runs already
                    aside.submit(asyncio.run, asyncio.wait_for(_answer_of(self.address), TIMEOUT)).result()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of versions, which are checked below
                self._client = distributed.Client(self._cluster or self.address, timeout=TIMEOUT, set_as_default=False)
        except (OSError, TimeoutError, UnicodeError) as error:  # the last of a host name that can be none
            if self.address is None:
                raise OffspanError(
                    f"--cluster: the {self.workers} workers did not start within {TIMEOUT:g} s ({excerpt(error)}); try fewer, or again "
                    "when this machine has less to do."
                ) from None
            reason = excerpt(error) if str(error) else f"no answer within {TIMEOUT:g} s"
            raise OffspanError(f"--cluster: no scheduler answers at {self.address} ({reason}); is it running?") from None
        self._client.subscribe_topic(TOPIC, lambda event: self._told.append(event[1]))
        self._check_versions()

    def _check_versions(self) -> None:
        """Of the workers that are there; those that come later refuse a task on their own."""
        names = [*(name for name in versions() if name != "Python"), "distributed"]
        found = self._client.get_versions(packages=names)

        def of(machine: dict[str, Any]) -> dict[str, Any]:
            return {**{name: machine["packages"][name] for name in names}, "Python": machine["host"]["python"].rsplit(".", 3)[0]}

        for worker, theirs in found["workers"].items():
            if sentence := difference(f"the worker {worker}", of(theirs), of(found["client"])):
                raise OffspanError(sentence)
        theirs, ours = ({"distributed": found[one]["packages"]["distributed"]} for one in ("scheduler", "client"))
        if sentence := difference("the scheduler", theirs, ours):
            raise OffspanError(sentence)


class _Tasks:
    """Runs the tasks of one work; a bounded number is submitted at a time, so that thousands of them do not fill the memory."""

    def __init__(self, dask: Dask, work: Work, tasks: Sequence[Task], kept: CheckpointStore, progress: Progress):
        self.dask, self.work, self.tasks, self.kept, self.progress = dask, work, tasks, kept, progress
        self.client: Any = dask._client
        self.run = uuid.uuid4().hex
        self.text, self.digest = work.to_text(), work.digest()
        self.asked = {"run": self.run, "versions": versions(), "devices": devices()}
        self.finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.begun: Counter[str] = Counter()
        self.shares: dict[str, float] = {}

    def finish(self, done: set[str]) -> None:
        waiting = [task for task in self.tasks if task.name not in done]
        running: dict[str, Any] = {}
        before, started = len(done), time.monotonic()
        try:
            while waiting or running:
                workers = self._count_workers()
                ready = [task for task in waiting if done.issuperset(task.needs)][: max(2 * workers + 2 - len(running), 0)]
                for task in ready:
                    waiting.remove(task)
                    running[task.name] = self._submit(task)
                with contextlib.suppress(queue.Empty):
                    name = self.finished.get(timeout=0.3)
                    self._store(name, running.pop(name))
                    done.add(name)
                self._listen()
                rate = (len(done) - before) / (time.monotonic() - started)
                self.progress(_share(self.tasks, done, self.shares), _in_words(len(done), len(self.tasks), rate, workers))
        finally:
            for future in running.values():
                future.release()  # so that the cluster forgets it

    def _count_workers(self) -> int:
        try:
            return len(self.client.sync(self.client.scheduler.ncores, callback_timeout=SILENCE))
        except (OSError, CancelledError, TimeoutError):
            raise self._lost() from None

    def _lost(self) -> OffspanError:
        in_memory = isinstance(self.kept, dict)  # which ends with this process
        then = "run the command again" if in_memory else "finished tasks are kept, and the same command resumes from there"
        return OffspanError(f"the cluster {self.dask.place} was lost; {then}.")

    def _submit(self, task: Task) -> Any:
        resume = self.kept.get(task.name)
        say_begun_with(task.name, resume, self.dask.say)
        given = [b"" if resume is None else pack(resume, self.digest)]
        given += [pack(checkpoint, self.digest) for name in task.needs if (checkpoint := self.kept.get(name)) is not None]
        asked = json.dumps({**self.asked, "needs": task.needs})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # a task has its arrays with it, so that it can run again anywhere
            future = self.client.submit(
                on_worker, type(self.work).__name__, self.text, task.name, asked, *given, key=f"{task.name}-{self.run}", pure=False
            )
        future.add_done_callback(lambda _: self.finished.put(task.name))
        return future

    def _store(self, name: str, future: Any) -> None:
        """The result into `kept`; the cluster forgets it."""
        try:
            content = future.result()
        except distributed.KilledWorker:
            raise OffspanError(
                f"{name} was given up, since worker after worker ended while it ran; perhaps it needs more memory than there is: try fewer "
                "workers, or fewer seeds a task."
            ) from None
        except CancelledError:
            raise self._lost() from None
        except Exception as error:  # ours come back as text
            raise OffspanError(f"{name} could not be run on the cluster ({type(error).__name__}: {excerpt(error)}).") from error
        finally:
            future.release()
        if isinstance(content, str):
            told = json.loads(content)
            if "sentence" in told:
                raise OffspanError(told["sentence"])
            raise RuntimeError(f"{name}, on a worker:\n{told['traceback']}")
        checkpoint = unpack(content, self.digest)
        self._listen()
        again = {"attempts": self.begun[name]} if self.begun[name] > 1 else {}
        self.kept[name] = checkpoint._replace(origin={**checkpoint.origin, **again})

    def _listen(self) -> None:
        """Reads the events that workers sent: which task began, and how much of it is done."""
        while self.dask._told:
            told = self.dask._told.popleft()
            if told["run"] != self.run:
                continue
            self.shares[told["task"]] = told["share"]
            if told["begins"]:
                self.begun[told["task"]] += 1
                if self.begun[told["task"]] > 1:
                    self.dask.say(f"{told['task']} runs again: the worker that had it ended.")


def on_worker(work: str, text: str, task: str, asked: str, *given: bytes) -> bytes | str:
    """`perform` on a worker of Dask."""
    worker: Any = distributed.get_worker()
    key, run, last = worker.get_current_task(), json.loads(asked)["run"], None

    def tell(share: float) -> None:
        nonlocal last
        state = worker.state.tasks.get(key)
        if state is None or state.state == "cancelled":
            raise OffspanError(f"nobody waits for {task} any more.")
        if last is None or time.monotonic() - last >= TELL_EVERY:
            worker.log_event(TOPIC, {"run": run, "task": task, "share": share, "begins": last is None})
            last = time.monotonic()

    return perform(str(worker.address), work, text, task, asked, given, tell)


def _read_place(place: str) -> tuple[int, str | None]:
    """The number of local workers, or the address of a scheduler."""
    if (local := re.fullmatch(r"local:([1-9]\d{0,3})", place)) is not None:
        return int(local[1]), None
    if re.match(r"(tcp|tls)://", place):
        _check_address(place, "--cluster")
        return 0, place
    try:
        address = json.loads(read_bytes(Path(place)))["address"]
    except FileNotFoundError:
        raise OffspanError(
            f"--cluster is {place!r}, but must be local:4 (workers here), tcp://host:8786, or the path of a scheduler file."
        ) from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise OffspanError(f"--cluster: {place} is not a scheduler file of Dask (JSON with an `address`).") from None
    _check_address(address, f"--cluster: the `address` in {place}")
    return 0, address


def _check_address(address: Any, said: str) -> None:
    """Raises where Dask would, or would wait for what cannot answer."""
    try:
        found = urllib.parse.urlsplit(address if isinstance(address, str) else "")
        is_whole = found.scheme in ("tcp", "tls") and found.hostname and found.port and address == f"{found.scheme}://{found.netloc}"
    except ValueError:  # of a port that is no number, or of brackets
        is_whole = False
    if not is_whole:
        raise OffspanError(f"{said} is {address!r}, but must be a host and a port, such as tcp://host:8786 or tls://host:8786.")
    if address.startswith("tls") and distributed.Security().get_connection_args("client").get("ssl_context") is None:
        raise OffspanError(
            f"{said} is {address!r}, but Dask has no certificates here: name them in its configuration under distributed.comm.tls, or use "
            "an SSH tunnel to localhost."
        )


async def _answer_of(address: str) -> None:
    """Returns when a scheduler has answered; Dask's client has no limit for what accepts a connection and then says nothing."""
    comm = await distributed.comm.connect(address, **distributed.Security().get_connection_args("client"))
    await comm.close()


def is_exposed(address: str) -> bool:
    """Whether a scheduler listens to others than this machine without encryption."""
    found = urllib.parse.urlsplit(address)
    return found.scheme == "tcp" and found.hostname not in ("localhost", "127.0.0.1", "::1")


def _start(workers: int, gpus: list[str], say: Callable[[str], Any]) -> tuple[Any, int]:
    """Workers on this machine, one process each, that listen to this machine alone; and their number."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    every = environments(workers, cores, gpus)
    if len(every) < workers:
        say(f"{len(every)} workers in place of {workers}, since there are {len(gpus)} GPUs, and each worker has one.")
    here: dict[str, Any] = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    options = {**here, "nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL, "preload": ["offspan.experiments.worker"]}
    cluster = distributed.SpecCluster(
        scheduler={"cls": distributed.Scheduler, "options": {**here, "port": 0, "allowed_failures": FAILURES}},
        workers={i: {"cls": distributed.Nanny, "options": {**options, "env": env}} for i, env in enumerate(every)},
        silence_logs=logging.CRITICAL,
    )
    return cluster, len(every)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C waits until the end, since a cluster that is half started cannot be closed. Threads that begin in here, and the processes that
    they start, never get it: it is the client's, which ends them."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    pressed: list[int] = []
    resource_tracker.ensure_running()  # it would undo the mask for the thread that starts the first process
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    wakened = signal.set_wakeup_fd(-1)  # nobody else is told before the end, either
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if pressed:
        signal.raise_signal(signal.SIGINT)


def visible_gpus() -> list[str]:
    """The NVIDIA GPUs that jax could use here, found without starting it."""
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if not any("cuda" in plugin.name for plugin in plugins) or (platforms and not {"cuda", "gpu"} & set(platforms.split(","))):
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu for gpu in visible.split(",") if gpu not in ("", "-1")]
    try:
        found = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return found.stdout.split()


def _share(tasks: Sequence[Task], done: set[str], shares: dict[str, float]) -> float:
    made = sum(task.weight * (1.0 if task.name in done else shares.get(task.name, 0.0)) for task in tasks)
    return made / sum(task.weight for task in tasks)


def _in_words(done: int, whole: int, rate: float, workers: int) -> str:
    pace = f", {rate:.2g} a second" if rate >= 1 else f", {60 * rate:.2g} a minute" if rate > 0 else ""
    return f"{done} of {whole} tasks{pace}, {workers} workers" if workers else f"{done} of {whole} tasks, waiting for a worker"
