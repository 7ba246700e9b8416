"""The table of a server's routes: a handler for each method and path. A part of a path may be a name in
braces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from stretto.http.client_request import BodySink, ClientRequest
from stretto.http.refusals import NotAllowed, unknown_path

R = TypeVar("R")

Handler: TypeAlias = Callable[[R], Awaitable[None]]
"""Answers a request, of the class that its application makes."""


@dataclass(frozen=True, slots=True)
class Operation:
    """How an OpenAPI document describes a route.

    Attributes:
        name: id of the operation.
        answer: properties of the answer's JSON and their types; None if the answer is never JSON.
        body: type of the body that the route takes; None if it takes none.
        status: status of the answer.
        others: schemas of answers that are no JSON, by content type.
        links: requests that may follow the answer, by name.
    """

    name: str
    answer: Mapping[str, str] | None = None
    body: type | None = None
    status: int = 200
    others: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    links: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route(Generic[R]):
    """A method and a path, such as GET and "/v1/sessions/{session}", and what answers there.

    Attributes:
        is_open: whether it needs no key.
        max_body_bytes: largest number of bytes of a body; None for the server's own limit.
        max_body_s: seconds that a body may take to come; None for the server's own limit.
        sink: returns what takes the body of a request as it comes; None keeps bodies in memory.
        operation: how the application's OpenAPI document describes it; None leaves it out.
    """

    method: str
    path: str
    handler: Handler[R]
    is_open: bool = False
    max_body_bytes: int | None = None
    max_body_s: float | None = None
    sink: Callable[[ClientRequest], BodySink] | None = None
    operation: Operation | None = None


class Routes(Generic[R]):
    """A table of routes. Paths without names in braces are found in a dictionary, others part by part.

    Args:
        heads: whether HEAD has the route of GET; the answer's body is left out then.
    """

    def __init__(self, *, heads: bool = True) -> None:
        self._heads = heads
        self._fixed: dict[str, dict[str, Route[R]]] = {}
        self._named: dict[int, list[tuple[tuple[str, ...], dict[str, Route[R]]]]] = {}

    def __iter__(self) -> Iterator[Route[R]]:
        """Iterate over the routes, those of one path behind each other."""
        named = [methods for same_length in self._named.values() for _, methods in same_length]
        for methods in (*self._fixed.values(), *named):
            yield from methods.values()

    def add(self, *routes: Route[R]) -> None:
        """Add routes."""
        for route in routes:
            if "{" not in route.path:
                self._fixed.setdefault(route.path, {})[route.method] = route
                continue
            pattern = tuple(route.path.split("/"))
            same_length = self._named.setdefault(len(pattern), [])
            for known, methods in same_length:
                if known == pattern:
                    methods[route.method] = route
                    break
            else:
                same_length.append((pattern, {route.method: route}))

    def find(self, method: str, path: str) -> tuple[Route[R], tuple[str, ...]]:
        """Return the route of a request, and the parts of its path that stand for names in braces.

        Raises:
            Refused: there is none (404), or it takes other methods (405, `NotAllowed`).
        """
        parts: tuple[str, ...] = ()
        methods = self._fixed.get(path)
        if methods is None:
            methods, parts = self._found(path)
        route = methods.get("GET" if method == "HEAD" and self._heads else method)
        if route is None:
            also = ("HEAD",) if "GET" in methods and self._heads else ()
            raise NotAllowed(path, method, tuple(sorted((*methods, *also))))
        return route, parts

    def _found(self, path: str) -> tuple[dict[str, Route[R]], tuple[str, ...]]:
        given = path.split("/")
        for pattern, methods in self._named.get(len(given), ()):
            found = []
            for wanted, part in zip(pattern, given, strict=True):
                if wanted.startswith("{") and part:
                    found.append(part)
                elif wanted != part:
                    break
            else:
                return methods, tuple(found)
        raise unknown_path(path)
