"""Settings of all tests: without a GPU, Triton's kernels run in its interpreter, which must be set
before any import.
"""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
