"""A command of `stretto` that serves, for checks that ask it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
_MAX_START_S = 300.0


class Served:
    """A command of `stretto` that runs, with its log in a file.

    Raises:
        SystemExit: it has ended before it told its address, or has not told it in time.
    """

    def __init__(self, log: Path, *command: str) -> None:
        self._log, self._command = log, (sys.executable, "-m", "stretto", *command)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it tells its address; whatever goes wrong, no process is left.

        Raises:
            SystemExit: as the class.
        """
        self._log.unlink(missing_ok=True)
        with self._log.open("w") as log:
            self.process = subprocess.Popen(self._command, cwd=CLONE, stdout=log, stderr=log)
        try:
            self.url = self._address()
        except BaseException:
            self.kill()
            raise

    def _address(self) -> str:
        until_s = time.monotonic() + _MAX_START_S
        while not (found := re.search(r"http://[^\s,]+", self._log.read_text())):
            has_ended = self.process.poll() is not None
            if has_ended or time.monotonic() > until_s:
                what = "has ended" if has_ended else f"has told no address in {_MAX_START_S:.0f} s"
                raise SystemExit(f"stretto {self._command[3]} {what}:\n{self._log.read_text()}")
            time.sleep(0.1)
        return found[0]

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def processor_s(self) -> float:
        """Return the processor time that it has taken, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def sample(self) -> tuple[float, int]:
        """Return its memory in MB, and its number of open files."""
        process = Path(f"/proc/{self.process.pid}")
        kept = re.search(r"VmRSS:\s+(\d+)", (process / "status").read_text())
        assert kept is not None
        return int(kept[1]) / 1024, len(os.listdir(process / "fd"))
