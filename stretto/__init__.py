"""Stretto runs LLM applications as graphs of steps on engines that you run already.

Public are the names of `stretto`, `stretto.apps`, `stretto.components`, `stretto.engines` and
`stretto.programs` that their `__all__` lists. All other modules and names are internal, and may change with
any release. A name of this package is imported when it is first used, so that the command line starts without
the runtime.
"""

from typing import TYPE_CHECKING

from stretto import moved
from stretto.model.extras import lazy_names

if TYPE_CHECKING:
    from stretto.apps.components.component import Component, Input, parallel
    from stretto.apps.template import Template
    from stretto.apps.vocabulary import DEFAULT
    from stretto.documents import load_documents
    from stretto.model.deployment import Deployment, deploy
    from stretto.model.errors import StrettoError
    from stretto.model.replica import Engine, Replica
    from stretto.model.tasks import Task
    from stretto.model.values import ABSENT, Chunk, Document, Failure, Hit, Section
    from stretto.runtime.journal.tool_calls import ToolJournal
    from stretto.runtime.query import Query
    from stretto.runtime.runtime import Runtime
    from stretto.runtime.session import Session
    from stretto.sched.vocabulary import Vocabulary

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
    "ToolJournal",
    "Vocabulary",
    "deploy",
    "load_documents",
    "parallel",
]

_MODULES = {
    "model.values": ("ABSENT", "Chunk", "Document", "Failure", "Hit", "Section"),
    "model.deployment": ("Deployment", "Engine", "Replica", "deploy"),
    "documents": ("load_documents",),
    "model.errors": ("StrettoError",),
    "apps.components.component": ("Component", "Input", "parallel"),
    "apps.template": ("Template",),
    "runtime.journal.tool_calls": ("ToolJournal",),
    "runtime.query": ("Query",),
    "runtime.runtime": ("Runtime",),
    "runtime.session": ("Session",),
    "model.tasks": ("Task",),
    "apps.vocabulary": ("DEFAULT",),
    "sched.vocabulary": ("Vocabulary",),
}

if not TYPE_CHECKING:  # a checker would take every name for one of the package
    __getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    """Return the names of the package, those included that have not been imported yet."""
    return sorted({*globals(), *__all__})


moved.install()
