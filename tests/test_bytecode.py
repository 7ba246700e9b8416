"""Processes that tests start keep what they compile, so that the next one need not."""

import subprocess
import sys


def test_a_process_of_a_test_writes_bytecode() -> None:
    asked = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    assert answer == ["False", str(sys.pycache_prefix)]
