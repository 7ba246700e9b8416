"""Stretto runs LLM applications end to end as fast as the hardware allows.

A name of this package is imported when it is first used, so that the command line starts without the runtime.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.core import ABSENT, Chunk, Document, Failure, Hit, Section
    from stretto.default_vocabulary import DEFAULT
    from stretto.deployment import Deployment, Engine, Replica, deploy
    from stretto.documents import load_documents
    from stretto.errors import StrettoError
    from stretto.frontend.component import Component, Input, parallel
    from stretto.frontend.template import Template
    from stretto.runtime.query import Query
    from stretto.runtime.runtime import Runtime
    from stretto.runtime.session import Session
    from stretto.tasks import Task
    from stretto.vocabulary import Vocabulary

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "DEFAULT",
    "Chunk",
    "Component",
    "Deployment",
    "Document",
    "Engine",
    "Failure",
    "Hit",
    "Input",
    "Query",
    "Replica",
    "Runtime",
    "Section",
    "Session",
    "StrettoError",
    "Task",
    "Template",
    "Vocabulary",
    "deploy",
    "load_documents",
    "parallel",
]

_MODULES = {
    "core": ("ABSENT", "Chunk", "Document", "Failure", "Hit", "Section"),
    "deployment": ("Deployment", "Engine", "Replica", "deploy"),
    "documents": ("load_documents",),
    "errors": ("StrettoError",),
    "frontend.component": ("Component", "Input", "parallel"),
    "frontend.template": ("Template",),
    "runtime.query": ("Query",),
    "runtime.runtime": ("Runtime",),
    "runtime.session": ("Session",),
    "tasks": ("Task",),
    "default_vocabulary": ("DEFAULT",),
    "vocabulary": ("Vocabulary",),
}
_MODULE_OF = {name: f"stretto.{module}" for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # a checker would take every name for one of the package

    def __getattr__(name: str) -> object:
        """Import a public name from its module, and keep it. Raises AttributeError for any other name."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return found


def __dir__() -> list[str]:
    """Return the names of the package, those included that have not been imported yet."""
    return sorted({*globals(), *__all__})
