"""Values of JSON from bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode


def read_json(data: bytes) -> Any:
    """Return what `json.loads` returns, in half of its time for what is JSON. What only that one takes, such
    as NaN, half of a surrogate pair or UTF-16, takes longer.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        return _decode(data)
    except ValueError:
        return json.loads(data)
