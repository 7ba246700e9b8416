"""`stretto keys`, which makes API keys of tenants, and hashes of them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stretto.model.errors import ConfigError
from stretto.model.nearest_name import check_name

_ACTIONS = ("new", "hash")


def keys(action: Annotated[str, typer.Argument(help="new or hash.", metavar="ACTION")] = "new") -> None:
    r"""Make an API key for a tenant: print it, and the hash that stands in its \[\[service.tenant]].

    With hash, read a key from standard input, and print its hash alone.
    """
    from stretto.service.api_keys import hashed_key, new_key

    check_name("action", action, _ACTIONS)
    if action == "new":
        key = new_key()
        print(f"key:  {key}\nhash: {hashed_key(key)}")
        return
    key = sys.stdin.read().strip()
    if not key or not key.isascii() or not key.isprintable() or len(key.split()) > 1:
        raise ConfigError("standard input must have one key of printable ASCII, without spaces")
    print(hashed_key(key))
