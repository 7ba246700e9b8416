"""Reads apps whose answers decide, and the requests for them; every mistake names its place.

    template: refine.py:app
    models: {llm: vicuna-13b-v1.5, judge: Llama-2-70b-chat-hf}
    answers:
      "verdict*": {"yes": 0.6, "no": 0.4}
      draft: length
    learn_from: [earlier.jsonl.journal]

`FILE.py:NAME` alone is an app, too. NAME may also be a program: a function with parameters that have no
default, which calls semantic functions. A request has a `custom_id`, and the app's `inputs` by name, or a
`prompt` for an app with a single one.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from stretto.apps.template import Template
from stretto.apps.template_file import template_of
from stretto.model.errors import ConfigError, StrettoError, UserError
from stretto.model.user_files import is_in_file, named_in_file
from stretto.planner.application import AppRequest, Named, check_model
from stretto.planner.deciding.answer_beliefs import AnswerBelief
from stretto.planner.deciding.app import LENGTH, DecidingApp
from stretto.planner.deciding.nodes import DrawnApplication, first_nodes
from stretto.programs.decided import DecidedProgram, program_of
from stretto.programs.traced import TracedProgram, inputs_of
from stretto.runtime.input_checks import check_inputs
from stretto.runtime.journal.lines import parse_entry
from stretto.schema.typed import read_as


class _WrittenApp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An app as its file has it."""

    template: str
    models: dict[str, str] = {}
    answers: dict[str, Any] = {}
    learn_from: tuple[str, ...] = ()


class _QueryLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request as its line has it."""

    custom_id: Named
    inputs: dict[str, Any] | None = None
    prompt: str | None = None


def is_deciding(found: object) -> bool:
    """Return whether what a YAML file has is an app whose answers decide."""
    return isinstance(found, dict) and "template" in found


def app_of(found: Any, path: Path) -> DrawnApplication:
    """Return the app that a YAML file describes, or a Python file has as FILE.py:NAME.

    Args:
        found: what the YAML file has; None for a Python file.

    Raises:
        ConfigError: a field is wrong, there is no such template, or it is no app of LLM calls.
    """
    if found is None:
        return first_nodes(DecidingApp(_template(str(path))))
    written = read_as(_WrittenApp, found)
    if not is_in_file(written.template):
        raise ConfigError(f"template must be FILE.py:NAME, got {written.template!r}")
    template = _template(str(path.parent / written.template))
    for model in written.models.values():
        check_model(model)
    declared = {step: _belief(step, answers) for step, answers in written.answers.items()}
    source = DecidingApp(template, written.models, declared)
    for name in written.learn_from:
        _learn(source, path.parent / name)
    return first_nodes(source)


def _template(where: str) -> Template:
    """Return the app that FILE.py:NAME names: a template, or a program."""
    given = named_in_file(where, where)
    if inspect.isfunction(given) and inputs_of(given):
        return program_of(given)
    try:
        return template_of(given, where)
    except ConfigError:
        raise
    except StrettoError as error:  # as of a program without parameters, which calls semantic functions
        raise ConfigError(f"{where}: {error}; a program to plan has a parameter for each input") from error


def _belief(step: str, answers: Any) -> AnswerBelief | str:
    if answers == LENGTH:
        return LENGTH
    if not isinstance(answers, dict) or not answers:
        raise ConfigError(
            f"answers of {step!r} must be {LENGTH!r}, or map answers (or widths of a list) to weights, "
            f"got {answers!r:.80}"
        )
    weights: dict[str, float] = {}
    for text, weight in answers.items():
        is_weight = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_weight or not 0 <= weight < float("inf"):
            raise ConfigError(f"answers of {step!r}: the weight of {text!r} must be a number, got {weight!r}")
        word = {True: "yes", False: "no"}[text] if isinstance(text, bool) else str(text)
        if weight:
            weights[word] = float(weight)
    if not weights:
        raise ConfigError(f"answers of {step!r}: at least one must have a weight above 0")
    return AnswerBelief(weights, "declared")


def _learn(source: DecidingApp, path: Path) -> None:
    """Count the answers that a run's journal has."""
    try:
        with path.open("rb") as file:
            entries = [parse_entry(line, is_checked=True) for line in file]
    except OSError as error:
        raise ConfigError(f"learn_from: {path}: {error.strerror}") from error
    num_found = 0
    for entry in filter(None, entries):
        match entry.key, entry.value:
            case (_, _, step, _), [str(text), int(), int(tokens), *_]:
                source.lengths.setdefault(step, Counter())[tokens] += 1
                source.learned.setdefault(step, Counter())[_answer_key(text)] += 1
                num_found += 1
    if not num_found:
        raise ConfigError(f"learn_from: {path} is no journal of a run with answers")


def _answer_key(text: str) -> str:
    """Return what counts of an answer: its text, or the width of a list."""
    if not text.startswith("["):
        return text
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return str(len(found)) if isinstance(found, list) else text


def query_request(found: Any, app: DrawnApplication) -> AppRequest:
    """Return the request that the JSON of one line describes. Raises ConfigError if it is wrong."""
    line = read_as(_QueryLine, found)
    egraph, template = app.source.egraph, app.source.template
    names = [name for name, _ in template.inputs]
    if (line.inputs is None) == (line.prompt is None):
        raise ConfigError(
            f"a request needs inputs ({', '.join(names)}), or a prompt for an app with one input"
        )
    inputs = line.inputs
    if inputs is None:
        if len(names) != 1:
            raise ConfigError(
                f"the app has the inputs {', '.join(names)}; give them as `inputs`, not as a prompt"
            )
        inputs = {names[0]: line.prompt}
    if isinstance(template, TracedProgram | DecidedProgram):
        inputs = dict(template.values(inputs))
    if not isinstance(template, DecidedProgram):
        try:
            check_inputs(egraph, inputs)
        except UserError as error:
            raise ConfigError(error.message) from error
    return AppRequest(line.custom_id, 0, inputs=inputs)
