"""The program of a process that reads large bodies: it gets functions and bodies, and answers with what these
return or raise.
"""

from __future__ import annotations

import gc
import pickle
import sys

from stretto.model.child_process import serve_parent
from stretto.model.errors import InternalError
from stretto.model.foreign import described


def main() -> None:
    """Answer until there are no more bodies. Argument: bytes of memory beyond those in use now."""
    gc.disable()  # JSON has no cycles
    serve_parent(_read, int(sys.argv[1]))


def _read(read: bytes, content: bytes) -> bytes:
    found: tuple[bool, object]
    try:
        found = False, pickle.loads(read)(content)
    except MemoryError:
        raise
    except Exception as error:
        found = True, error
    try:
        return pickle.dumps(found)
    except (pickle.PicklingError, TypeError, AttributeError):
        return pickle.dumps((True, InternalError(f"a body was read, but not sent: {described(found[1])}")))
