"""KV that one emulated server computes for another, as `kv_transfer_params` say it.

A request with `do_remote_decode` is answered with the place of its prompt's KV. A request with that place,
and `do_remote_prefill`, waits as long as the KV takes over a link, and finds it in its cache. Whether the
first server still has it is not checked.

Source: vLLM 0.32, `kv_transfer_params` of its NIXL connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.emulate.prepared import PreparedRequest

LINK_BYTES_S = 25e9
"""Speed of the network between two servers: 200 Gbit/s."""
_BLOCK_TOKENS = 16


def is_prefill(params: Any) -> bool:
    """Return whether a request wants the KV of its prompt kept for another server."""
    return isinstance(params, Mapping) and params.get("do_remote_decode") is True


def is_prefilled(params: Any) -> bool:
    """Return whether another server has computed the prompt of a request."""
    return isinstance(params, Mapping) and params.get("do_remote_prefill") is True


def transfer_of(prepared: PreparedRequest, engine_id: str, number: int) -> Mapping[str, object]:
    """Return where the KV of a request's prompt is, for the server that writes the answer."""
    num_blocks = -(-prepared.num_prompt_tokens // _BLOCK_TOKENS)
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": list(range(num_blocks)),
        "remote_engine_id": engine_id,
        "remote_request_id": str(number),
        "remote_host": "127.0.0.1",
        "remote_port": 0,
    }
