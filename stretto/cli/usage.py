"""`stretto usage`, which prints what tenants have used."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def usage(
    state: Annotated[Path, typer.Option("--state", help="Folder of `stretto serve --state`.", metavar="DIR")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each day and tenant.")
    ] = False,
) -> None:
    """Print what each tenant has used on each day (UTC): requests and tokens, as CSV."""
    from stretto.service.usage_book import DayUsage, read_usage

    rows = read_usage(state)
    if as_json:
        for row in rows:
            print(json.dumps(row._asdict()))
        return
    table = csv.writer(sys.stdout)
    table.writerow(DayUsage._fields)
    table.writerows(rows)
