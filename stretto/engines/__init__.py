"""Engines that are ready to register: what a runtime runs apps and programs on.

The names of this package are public, and are imported when they are first used. Its modules are internal.
"""

from typing import TYPE_CHECKING

from stretto.model.extras import lazy_names

if TYPE_CHECKING:
    from stretto.engines.catalogue import (
        embedding_engine,
        local_engines,
        reranking_engine,
        search_engines,
        tools_engine,
        transforms_engine,
        vectors_engine,
        web_engine,
    )
    from stretto.engines.llms import llm_engine, server_replica
    from stretto.engines.mcp_tools import MCPServer, MCPTools

__all__ = [
    "MCPServer",
    "MCPTools",
    "embedding_engine",
    "llm_engine",
    "local_engines",
    "reranking_engine",
    "search_engines",
    "server_replica",
    "tools_engine",
    "transforms_engine",
    "vectors_engine",
    "web_engine",
]

_MODULES: dict[str, tuple[str, ...]] = {
    "catalogue": (
        *("embedding_engine", "local_engines", "reranking_engine", "search_engines", "tools_engine"),
        *("transforms_engine", "vectors_engine", "web_engine"),
    ),
    "llms": ("llm_engine", "server_replica"),
    "mcp_tools": ("MCPServer", "MCPTools"),
}

if not TYPE_CHECKING:  # a checker would take every name for one of the package
    __getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    """Return the names of the package, those included that have not been imported yet."""
    return sorted({*globals(), *__all__})
