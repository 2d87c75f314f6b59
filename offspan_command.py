"""The command `offspan`: beside the package, as importing that takes seconds, in which Ctrl-C is to be answered as well."""

import os
import signal
from typing import Any


def main() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # as SIGHUP is under nohup
            signal.signal(number, _stop)
    from offspan.cli import main
    from offspan.terminal import Stopped

    try:
        main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to say or to keep
        if Stopped.by is not None:
            Stopped.leave()


def _stop(number: int, _: Any) -> None:
    """Ends the process at once, as an exception may be lost in what is being imported."""
    os.write(2, b"offspan: stopped; nothing was done yet.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
