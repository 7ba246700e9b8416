"""The ready endpoints of EndpointSlices, from lists and events of Kubernetes's API.

Source: Kubernetes API, discovery.k8s.io/v1 EndpointSlice: a `ready` that is missing counts as true, and the
addresses of one endpoint are the same endpoint, of which the first is to be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from stretto.model.errors import BadReply

Endpoint: TypeAlias = tuple[str, int | None]
"""Address and port; no port where the slice names none."""


class Endpoints:
    """What the slices of a selector have now.

    Attributes:
        version: version of what is known, from which changes are to be asked for; "" before the first list.
    """

    def __init__(self) -> None:
        self.version = ""
        self._slices: dict[str, list[Endpoint]] = {}

    def listed(self, answer: Mapping[str, Any]) -> None:
        """Take all slices. Raises BadReply if it is no list of slices; nothing changes then."""
        try:
            slices = {_name(one): _ready(one) for one in answer["items"]}
            version = str(answer["metadata"]["resourceVersion"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadReply(f"its list of EndpointSlices cannot be read: {error!r:.200}") from error
        self._slices, self.version = slices, version

    def changed(self, event: Mapping[str, Any]) -> bool:
        """Take a change; return whether endpoints may have changed.

        Raises:
            BadReply: it is no change of a slice.
        """
        try:
            kind, slice_ = event["type"], event["object"]
            version = str(slice_["metadata"]["resourceVersion"])
            name = "" if kind == "BOOKMARK" else _name(slice_)
            ready = _ready(slice_) if kind in ("ADDED", "MODIFIED") else []
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadReply(f"its change of an EndpointSlice cannot be read: {error!r:.200}") from error
        self.version = version
        if kind == "DELETED":
            return bool(self._slices.pop(name, None))
        if kind not in ("ADDED", "MODIFIED"):
            return False
        before, self._slices[name] = self._slices.get(name), ready
        return before != ready

    def ready(self) -> Iterable[Endpoint]:
        """Return the endpoints that take requests, each once, in the order of slices' names."""
        return dict.fromkeys(one for name in sorted(self._slices) for one in self._slices[name])


def _name(slice_: Mapping[str, Any]) -> str:
    return str(slice_["metadata"]["name"])


def _ready(slice_: Mapping[str, Any]) -> list[Endpoint]:
    ports = [one for one in slice_.get("ports") or () if one.get("port")]
    named = next((one for one in ports if one.get("name") == "http"), ports[0] if ports else {})
    port = int(named["port"]) if named else None
    found = []
    for endpoint in slice_.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        if conditions.get("ready") is not False and not conditions.get("terminating"):
            found.append((str(endpoint["addresses"][0]), port))
    return found
