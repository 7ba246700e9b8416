"""Stretto runs LLM applications end to end as fast as the hardware allows."""

from stretto.core import ABSENT, Chunk, Document, Failure, Hit, Section
from stretto.documents import load_documents
from stretto.engine import Engine
from stretto.errors import StrettoError
from stretto.frontend.component import Component, Input, parallel
from stretto.frontend.plan_cache import register_expansion
from stretto.frontend.template import Template
from stretto.runtime.query import Query
from stretto.runtime.runtime import Runtime
from stretto.runtime.session import Session
from stretto.tasks import Task

__all__ = [
    "ABSENT",
    "Chunk",
    "Component",
    "Document",
    "Engine",
    "Failure",
    "Hit",
    "Input",
    "Query",
    "Runtime",
    "Section",
    "Session",
    "StrettoError",
    "Task",
    "Template",
    "load_documents",
    "parallel",
    "register_expansion",
]
