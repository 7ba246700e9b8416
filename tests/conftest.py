"""Settings of all tests.

Without a GPU, Triton's kernels run in its interpreter, which must be set before any import. Property tests
have no deadline for an example: how long one takes says nothing on a shared machine.

A shell that runs the tests in the background has them ignore Ctrl-C, and `nohup` SIGHUP, with all processes
that they start.
"""

import os
import signal
from pathlib import Path

from hypothesis import settings

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

settings.register_profile("without_deadline", deadline=None)
settings.load_profile("without_deadline")
