"""A snapshot of an index of held prefixes as JSON text, so that a router that starts again knows what its
workers hold.

Instances are written by names that outlive a process, such as addresses, and times as ages, because clocks
begin anew. The blocks that an instance reports by KV events are left out, because it reports them again.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from stretto.cluster.messages import InstanceId
from stretto.cluster.prefix_hashes import HASH_BYTES
from stretto.cluster.prefix_index import PrefixIndex
from stretto.cluster.prefix_runs import IndexRun
from stretto.model.errors import ConfigError

_FORMAT = "stretto held prefixes 1"


def take_snapshot(index: PrefixIndex, names: Mapping[InstanceId, str], now_s: float) -> str:
    """Return what the named instances hold at a time."""
    instances = {}
    for instance, name in names.items():
        member = index.members.get(instance)
        if member is not None and member.tree is not None:
            used = member.tree.holders[instance].used.items()
            prefixes = [[_path(run), max(0.0, now_s - used_s)] for run, used_s in used]
            instances[name] = {"space": member.space, "prefixes": prefixes}
    return json.dumps({"format": _FORMAT, "instances": instances})


def restore_snapshot(index: PrefixIndex, text: str, instances: Mapping[str, InstanceId], now_s: float) -> int:
    """Put what a snapshot says of instances that are still there into an index; return how many of them.

    Prefixes are as old as they were when the snapshot was taken. An instance whose tokenizer or block length
    has changed is left out. The index is not changed if the text is no snapshot.

    Args:
        instances: present ids of instances, by name.

    Raises:
        ConfigError: the text is no snapshot of this version.
    """
    num_restored = 0
    for name, (space, prefixes) in _read(text).items():
        instance = instances.get(name)
        member = None if instance is None else index.members.get(instance)
        if instance is None or member is None or member.tree is None or member.space != space:
            continue
        for data, age_s in prefixes:
            member.tree.use(instance, data, now_s - age_s)
        num_restored += 1
    return num_restored


def _path(run: IndexRun) -> str:
    """Return the hashes from a prompt's beginning to the end of a run."""
    parts: list[bytes] = []
    one: IndexRun | None = run
    while one is not None:
        parts.append(one.blocks)
        one = one.parent
    return b64encode(b"".join(reversed(parts))).decode("ascii")


def _read(text: str) -> dict[str, tuple[str, list[tuple[bytes, float]]]]:
    try:
        found: Any = json.loads(text)
        if found["format"] != _FORMAT:
            raise ConfigError(f"the snapshot has the format {found['format']!r}, not {_FORMAT!r}")
        return {
            str(name): (str(one["space"]), [(_hashes(data), _age(at)) for data, at in one["prefixes"]])
            for name, one in found["instances"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError("this is no snapshot of held prefixes") from error


def _hashes(text: str) -> bytes:
    data = b64decode(text, validate=True)
    if not data or len(data) % HASH_BYTES:
        raise ValueError("not a whole number of hashes")
    return data


def _age(value: Any) -> float:
    age_s = float(value)
    if not 0.0 <= age_s < math.inf:
        raise ValueError("not the age of a prefix: it would never be forgotten")
    return age_s
