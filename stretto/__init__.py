"""Stretto runs LLM applications end to end as fast as the hardware allows."""

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
