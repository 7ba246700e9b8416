"""Settings of all tests.

Without a GPU, Triton's kernels run in its interpreter, which must be set before any import. Property tests
have no deadline for an example: how long one takes says nothing on a shared machine.
"""

import os
from pathlib import Path

from hypothesis import settings

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("without_deadline", deadline=None)
settings.load_profile("without_deadline")
