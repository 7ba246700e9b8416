"""Checks the options of a call of `stretto ask` before any engine starts.

A collection is checked when it is opened.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from stretto.apps.template import Template
from stretto.apps.vocabulary import DEFAULT
from stretto.cli import parsing
from stretto.cli.ask.request import AskRequest, Settings
from stretto.cli.documents import read_documents
from stretto.cli.engines import Assembled, assemble
from stretto.cli.indexing import NAME, recipe
from stretto.engines.catalogue import check_llm_is_here, web_engine
from stretto.model.errors import UserError
from stretto.model.extras import check_installed
from stretto.model.values import Document


@dataclass(frozen=True, slots=True)
class Checked:
    """A call of `stretto ask` whose options have been checked, with all that is needed to run it.

    Attributes:
        configuration: settings of each run of the app, by component.
        recipe: text that says how documents are cut and embedded; empty if nothing is indexed.
        says_small_model: whether to say that the default model answers, because no other was chosen.
    """

    request: AskRequest
    template: Template
    configuration: Settings
    engines: Assembled
    documents: list[Document]
    recipe: str
    says_small_model: bool


def check(request: AskRequest, errors: Console) -> Checked:
    """Check the options of a call of `stretto ask`; return all that it needs: app, engines, documents.

    Raises:
        UserError: an option is wrong; the message says what would be right.
    """
    for option, path in (
        ("--trace", request.trace),
        ("--trace", request.chrome),
        ("--record", request.record),
        ("--journal", request.journal),
    ):
        if path is not None:
            parsing.checked_target(option, path)
    if not request.searches:
        check_installed("local", "an app that reads documents", "tokenizers")
    DEFAULT.select_passes(request.passes)
    small_llm = request.engines.has_small_llm
    template = parsing.template(request.app, named_collection=True, small_llm=small_llm)
    configuration = {component: dict(settings) for component, settings in request.settings.items()}
    template.lower(configuration)
    engines = assemble(request.engines, searches=request.searches)
    _check_documents(request, engines)
    if "llm" not in engines.from_file:
        for where in request.engines.llms or (None,):
            check_llm_is_here(where)
    made_by = ""
    if not request.searches:
        made_by = recipe(template, configuration, engines.embedder, engines.counted_by)
        configuration.setdefault(NAME, {})["recipe"] = made_by
    documents = read_documents(request.docs, request.max_bytes, errors, is_strict=request.is_strict)
    if request.searches and documents:
        engines, documents = engines.with_engine(web_engine(None, documents)), []
    says_small_model = "llm" not in engines.from_file and not request.engines.llms
    return Checked(request, template, configuration, engines, documents, made_by, says_small_model)


def _check_documents(request: AskRequest, engines: Assembled) -> None:
    """Check that there is something to read, and that no engine of the file reads something else."""
    file = request.engines.file
    has_service = request.searches and (request.engines.search is not None or "web" in engines.from_file)
    if not request.docs and request.collection is None and not has_service:
        raise UserError("give documents with --docs, or the name of a --collection")
    if request.searches and request.docs and "web" in engines.from_file:
        raise UserError(f"{file} describes the engine 'web', which does not search in --docs; leave them out")
    if request.collection is not None and "vectors" in engines.from_file:
        raise UserError(
            f"{file} describes the engine 'vectors', and --collection keeps its vectors with --dsn; "
            "leave one of them out"
        )
