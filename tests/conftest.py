"""Settings of all tests.

Without a GPU, Triton's kernels run in its interpreter, which must be set before any import. Property tests
have no deadline for an example: how long one takes says nothing on a shared machine. They have a quarter
of the usual examples, except where they say how many.

A shell that runs the tests in the background has them ignore Ctrl-C, and `nohup` SIGHUP, with all processes
that they start.

Where Python is told to write no bytecode, as in many containers, it goes to a folder of its own: each of the
hundreds of processes that the tests start would compile all that it imports, which took half of their time.

Clients of the tests trust one authority, of no use to anybody, in place of all that this machine trusts,
also where the environment names a file of those: they take 25 to 40 ms to be read, for each client of httpx,
of which there are thousands.

What the tests import stays: no garbage is collected among it, neither while it comes nor later.
"""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

gc.disable()

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "authority.pem")

settings.register_profile("stretto", deadline=None, max_examples=25)
settings.load_profile("stretto")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """End the time without garbage collections: in workers, and where reports of workers come in."""
    gc.freeze()
    gc.enable()
