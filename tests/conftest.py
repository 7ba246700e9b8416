"""Without a GPU, Triton's kernels run in its interpreter; it has to be told so before anything imports it."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
