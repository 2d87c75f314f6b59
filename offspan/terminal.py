"""What the command line says while it works, in a terminal or in a pipe, and how it ends when it is told to."""

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

console = Console(markup=False)  # names and folders may have brackets in them
LINE_SECONDS = 5.0  # between lines of progress in a pipe or a file
PATIENCE = 8.0  # seconds in which a signal must have ended the command


@contextmanager
def stoppable(kept: Callable[[], str]) -> Iterator[None]:
    """A signal ends the command with a sentence that closes with `kept()`: what was saved, and how to resume."""
    Stopped.in_hand.append(kept)
    try:
        yield
    except BaseException as error:
        if Stopped.by is None and not isinstance(error, KeyboardInterrupt):
            raise
        Stopped.tell()
        raise typer.Exit(Stopped.exit_code()) from None
    finally:
        Stopped.in_hand.remove(kept)


@contextmanager
def progress_of(name: str, kept: Callable[[], str]) -> Iterator[Any]:
    """A progress bar, or lines where there is no terminal, as a function of the share done and of what is being done, or None."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f} %")
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    task = bar.add_task(name, total=1.0)
    began = time.monotonic()

    def line() -> str:
        return f"{bar.tasks[0].description.rstrip()}: {bar.tasks[0].percentage:.0f} %, {time.monotonic() - began:.0f} s"

    def progress(share: float | None, doing: str | None = None) -> None:
        # Python drops an exception that is raised inside a finaliser, and with it a Ctrl-C at that moment.
        if Stopped.by is not None:
            raise Stopped
        bar.update(task, completed=share, description=doing)

    with stoppable(kept):
        with bar, _lines(line):
            yield progress
            bar.update(task, completed=1.0, description=name)
        if not console.is_terminal:
            console.print(line(), soft_wrap=True)


@contextmanager
def status(doing: str) -> Iterator[Callable[[str], Any]]:
    """Says what is being done, until something else is."""
    if console.is_terminal:
        with console.status(Text(doing)) as spinner:
            yield lambda doing: spinner.update(Text(doing))
        return
    said = [doing]
    with _lines(lambda: said[-1]):
        yield said.append


@contextmanager
def _lines(line: Callable[[], str]) -> Iterator[None]:
    """Prints a line every few seconds; nothing in a terminal, which has better."""
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(LINE_SECONDS):
            with suppress(OSError):  # nobody listens any more, or the disk is full: that is the command's to say
                console.print(line(), soft_wrap=True)

    if not console.is_terminal:
        threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class Stopped(BaseException):
    """By Ctrl-C, by SIGTERM, which a cluster sends before it kills, or by SIGHUP, when a terminal is closed."""

    by: ClassVar[int | None] = None
    in_hand: ClassVar[list[Callable[[], str]]] = []  # each says what is saved of something that has begun
    told: ClassVar[bool] = False
    closing: ClassVar[float] = 0.0  # further seconds, for a command that is stopping and has a cluster to close
    ends: ClassVar[tuple[socket.socket, ...]] = ()  # of the socket pair that wakes the watching thread

    @classmethod
    def listen(cls) -> None:
        def stop(signal_number: int, _: Any) -> None:
            if cls.by is None:  # a second one would only disturb what the first one ends
                cls.by = signal_number
                raise cls

        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and not (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):  # as under nohup
                signal.signal(number, stop)
        if not cls.ends:
            cls.ends = socket.socketpair()
            cls.ends[1].setblocking(False)
            signal.set_wakeup_fd(cls.ends[1].fileno(), warn_on_full_buffer=False)
            threading.Thread(target=cls._watch, daemon=True).start()
            show = sys.unraisablehook  # of an exception in a finaliser, which Python drops
            sys.unraisablehook = lambda dropped: None if dropped.exc_type is cls else show(dropped)

    @classmethod
    def _watch(cls) -> None:
        """Python handles signals between its own instructions, one of which may compile for minutes: some seconds later, this exits."""
        while (number := cls.ends[0].recv(1)[0]) not in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", None)):
            pass
        time.sleep(PATIENCE)
        if cls.by is not None:
            time.sleep(cls.closing)
        cls.by = number
        console.show_cursor()
        cls.tell()
        os._exit(cls.exit_code())

    @classmethod
    def tell(cls) -> None:
        if not cls.told:
            cls.told = True
            print("; ".join(["offspan: stopped", *(kept() for kept in cls.in_hand)]) + ".", file=sys.stderr, flush=True)

    @classmethod
    def leave(cls) -> None:
        """Without taking Python down piece by piece, in which a compiler that is still at work on other threads may crash."""
        atexit._run_exitfuncs()
        with suppress(AttributeError, OSError):  # there is no output (>&-), or it takes no more
            sys.stdout.flush()
        os._exit(cls.exit_code())

    @classmethod
    def exit_code(cls) -> int:
        return 128 + (cls.by or signal.SIGINT)
