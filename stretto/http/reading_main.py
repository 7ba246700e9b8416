"""The program of a process that reads large bodies: it gets functions and bodies, and answers with what these
return or raise.
"""

from __future__ import annotations

import gc
import pickle
import signal
import sys

from stretto.model.child_process import serve_parent
from stretto.model.errors import InternalError
from stretto.model.foreign import described


def main() -> None:
    """Answer until there are no more bodies. It ends when one takes too much.

    Arguments: bytes of memory beyond those in use now, and seconds of processor time for each body.
    """
    memory_bytes, limit_s = int(sys.argv[1]), float(sys.argv[2])
    gc.disable()  # JSON has no cycles

    def answer(read: bytes, content: bytes) -> bytes:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, limit_s)  # its signal ends the process
        return _read(read, content)

    serve_parent(answer, memory_bytes)


def _read(read: bytes, content: bytes) -> bytes:
    try:
        return pickle.dumps((False, pickle.loads(read)(content)))
    except MemoryError:
        raise
    except Exception as error:
        return _pickled(error)


def _pickled(error: Exception) -> bytes:
    try:
        return pickle.dumps((True, error))
    except (pickle.PicklingError, TypeError, AttributeError):
        return pickle.dumps((True, InternalError(f"a body could not be read: {described(error)}")))
