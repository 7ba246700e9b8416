"""The routes of a service: a handler for each method and path. A part of a path may be a name in braces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from stretto.service.refusals import NotAllowed, Refused
from stretto.service.request import ServiceRequest

Handler: TypeAlias = Callable[[ServiceRequest], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path, such as GET and "/v1/sessions/{session}", and what answers there.

    Attributes:
        is_open: whether it needs no key.
    """

    method: str
    path: str
    handler: Handler
    is_open: bool = False


class Routes:
    """A table of routes. Paths without names in braces are found in a dictionary, others part by part."""

    def __init__(self) -> None:
        self._fixed: dict[str, dict[str, Route]] = {}
        self._named: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Iterate over the method and the path of each route."""
        named = [methods for same_length in self._named.values() for _, methods in same_length]
        for methods in (*self._fixed.values(), *named):
            for route in methods.values():
                yield route.method, route.path

    def add(self, *routes: Route) -> None:
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

    def find(self, method: str, path: str) -> tuple[Route, tuple[str, ...]]:
        """Return the route of a request, and the parts of its path that stand for names in braces. HEAD has
        the route of GET; the server leaves the body out.

        Raises:
            Refused: there is none (404), or it takes other methods (405).
        """
        parts: tuple[str, ...] = ()
        methods = self._fixed.get(path)
        if methods is None:
            methods, parts = self._found(path)
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            also = ("HEAD",) if "GET" in methods else ()
            raise NotAllowed(path, method, tuple(sorted((*methods, *also))))
        return route, parts

    def _found(self, path: str) -> tuple[dict[str, Route], tuple[str, ...]]:
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
        raise Refused(404, "unknown_path", f"there is nothing at {path!r:.200}")
