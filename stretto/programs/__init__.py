"""Programs on semantic variables: Python functions whose docstring is a prompt, joined by variables.

Source: Parrot §4.1, with its names: `P.SemanticFunction`, `P.SemanticVariable`, `get(perf=P.LATENCY)`.
"""

from typing import Final

from stretto.programs.client import Client
from stretto.programs.function import SemanticFunction, semantic_function
from stretto.programs.outputs import Output
from stretto.programs.variable import SemanticVariable
from stretto.tasks import Objective

LATENCY: Final[Objective] = "latency"
THROUGHPUT: Final[Objective] = "throughput"

__all__ = [
    "LATENCY",
    "THROUGHPUT",
    "Client",
    "Output",
    "SemanticFunction",
    "SemanticVariable",
    "semantic_function",
]
