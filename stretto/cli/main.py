"""The entry point of the command line; it handles signals and errors of all commands.

Exit codes: 0 done; 1 an engine failed, a query ended early or stdout cannot be written; 2 invalid input or
options; 129, 130 and 143 ended by SIGHUP, Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

from stretto import __version__
from stretto.http.signals import REPEATED_S
from stretto.model.errors import StrettoError, UserError

_INTERRUPTED = 128 + signal.SIGINT


def main() -> NoReturn:
    """Run the `stretto` command line: parse its arguments, carry out the command, and exit with its code.

    A signal that comes again while the first one is obeyed is not obeyed twice.
    """
    received: list[int] = []
    obeyed_s = -REPEATED_S

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Call the current handler of Ctrl-C, which asyncio replaces while it runs."""
        nonlocal obeyed_s
        received.append(number)
        if time.monotonic() - obeyed_s < REPEATED_S:
            return
        obeyed_s = time.monotonic()
        ctrl_c = signal.getsignal(signal.SIGINT)
        (ctrl_c if callable(ctrl_c) else signal.default_int_handler)(number, frame)

    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # "cuda:1" is the same one in every process
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, interrupt)
        code = _flushed(_run())
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        logging.getLogger("asyncio").disabled = True  # tasks that an interrupted clean-up has left
        _complain("interrupted")
        code = 128 + received[0] if received else code
    sys.exit(code)


def _run() -> int:
    """Run the command; returns its exit code."""
    if sys.stdout is None:
        _complain("stdout is closed")
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be Unicode
    try:
        if sys.argv[1:] == ["--version"]:  # without typer, whose import takes longer than all the rest
            print(__version__)
            return 0
        from stretto.cli.commands import app

        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except StrettoError as error:
        _complain(str(error), type(error).__name__)
        return 2 if isinstance(error, UserError) else 1
    except BrokenPipeError:
        return 1
    except OSError as error:
        _complain(str(error), type(error).__name__)
        return 1
    return 0


def _flushed(code: int) -> int:
    """Flush stdout; returns the exit code, or 1 if stdout cannot be written."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if code == 0 and not isinstance(error, BrokenPipeError):
            _complain(f"stdout: {error.strerror}", type(error).__name__)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or 1
    return code


def _complain(message: str, kind: str = "") -> None:
    """Print one line on stderr."""
    from rich.console import Console
    from rich.markup import escape

    from stretto.cli.verbosity import shown

    message = escape(shown(" ".join(message.split()), sys.stderr))
    with contextlib.suppress(OSError):
        line = f"[bold red]{kind}[/]: {message}" if kind else message
        Console(stderr=True, emoji=False).print(line, soft_wrap=True)


if __name__ == "__main__":
    main()
