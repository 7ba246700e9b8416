"""KV that one emulated server computes for another, as `kv_transfer_params` say it.

A request with `do_remote_decode` is answered with the place of its prompt's KV. A request with that place,
and `do_remote_prefill`, waits as long as the KV takes over a link, and finds it in its cache. Whether the
first server still has it is not checked.

Source: `kv_transfer_params` in an answer of vLLM 0.32 with its NIXL connector.
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
    """Return where the KV of a request's prompt is, for the server that writes the answer. Blocks stand in a
    list for each group of layers.
    """
    num_tokens = prepared.num_prompt_tokens
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(-(-num_tokens // _BLOCK_TOKENS)))],
        "remote_engine_id": engine_id,
        "remote_request_id": str(number),
        "remote_host": "localhost",
        "remote_port": 0,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": num_tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }
