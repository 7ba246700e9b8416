"""`python -m stretto.training`."""

import sys

from stretto.training.commands import main

if __name__ == "__main__":
    sys.exit(main())
