"""The scheduler runs in the simulator: nothing under `stretto.llm` may need a tensor library."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import stretto.llm


def test_llm_package_imports_no_torch() -> None:
    names = [f"stretto.llm.{module.name}" for module in pkgutil.iter_modules(stretto.llm.__path__)]
    program = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=800).returncode == 0
