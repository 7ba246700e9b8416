"""Runs the command line as `python -m stretto`."""

from stretto.cli.main import main

if __name__ == "__main__":
    main()
