"""Checks that an app in a file of the user can be asked questions by `stretto ask`."""

from __future__ import annotations

from stretto.apps.template import Template
from stretto.cli.ask.request import AskOptions
from stretto.graph.graph import Graph
from stretto.graph.verify import verify
from stretto.model.errors import ConfigError

_BROUGHT = {"question": "text", "files": "list[document]"}
"""Inputs that `stretto ask` brings, with their types."""


def check_own_app(given: AskOptions, template: Template, graph: Graph) -> None:
    """Check that an app takes a question, and nothing but documents besides, and has a text as its answer.

    Raises:
        ConfigError: it takes or returns something else.
    """
    inputs = dict(template.inputs)
    for name, type_ in inputs.items():
        if _BROUGHT.get(name) != type_:
            raise ConfigError(
                f"--app {given.app}: input {name!r} is {type_}; `stretto ask` brings question (text) and "
                "files (list[document]) alone, `stretto serve` others too"
            )
    if "question" not in inputs:
        raise ConfigError(f"--app {given.app}: the app takes no input 'question'")
    types = verify(graph, template.vocabulary.ops)
    answer = dict(graph.outputs).get("answer")
    if answer is None or types[answer.name, answer.port] != "text":
        raise ConfigError(f"--app {given.app}: the app has no output 'answer' that is a text")
