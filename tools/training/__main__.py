"""`python -m tools.training`."""

import sys

from tools.training.commands import main

if __name__ == "__main__":
    sys.exit(main())
