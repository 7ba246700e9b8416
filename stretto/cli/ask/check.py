"""Checks the options of a call of `stretto ask` before any engine starts.

A collection is checked when it is opened.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from stretto.apps.template import Template
from stretto.cli import parsing
from stretto.cli.ask.own_app import check_own_app
from stretto.cli.ask.request import AskRequest, Settings
from stretto.cli.documents import read_documents
from stretto.cli.engines import Assembled, assemble
from stretto.cli.indexing import NAME, recipe
from stretto.engines.catalogue import web_engine
from stretto.engines.llms import check_llm_is_here
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
    given = request.given
    for option, path in (
        ("--trace", given.trace),
        ("--trace", given.chrome),
        ("--record", given.record),
        ("--journal", given.journal),
    ):
        if path is not None:
            parsing.checked_target(option, path)
    small_llm = request.engines.has_small_llm
    template = parsing.template(given.app, named_collection=True, small_llm=small_llm)
    template.vocabulary.select_passes(given.passes)
    configuration = {component: dict(settings) for component, settings in request.settings.items()}
    graph = template.lower(configuration)
    used = {primitive.engine for primitive in graph if primitive.engine}
    if given.is_own:
        check_own_app(given, template, graph)
    if "embedding" in used:
        check_installed("local", "an app that reads documents", "tokenizers")
    searches = "web" in used
    engines = assemble(request.engines, searches=searches, used=used)
    if given.is_own:
        engines = engines.only(used)
    _check_documents(request, engines, searches=searches, reads=searches or "files" in dict(template.inputs))
    if "llm" in used and "llm" not in engines.from_file:
        for where in request.engines.llms or (None,):
            check_llm_is_here(where)
    made_by = ""
    if not (searches or given.is_own):
        made_by = recipe(template, configuration, engines.embedder, engines.counted_by)
        configuration.setdefault(NAME, {})["recipe"] = made_by
    documents = read_documents(given.docs, given.max_bytes, errors, is_strict=given.strict)
    if searches and documents:
        engines, documents = engines.with_engine(web_engine(None, documents)), []
    says_small_model = "llm" in used and "llm" not in engines.from_file and not request.engines.llms
    return Checked(request, template, configuration, engines, documents, made_by, says_small_model)


def _check_documents(request: AskRequest, engines: Assembled, *, searches: bool, reads: bool) -> None:
    """Check that there is something to read, and that no engine of the file reads something else.

    Args:
        reads: whether the app takes documents.
    """
    given, file = request.given, request.engines.file
    has_service = searches and (request.engines.search is not None or "web" in engines.from_file)
    if reads and not given.docs and given.collection is None and not has_service:
        raise UserError("give documents with --docs, or the name of a --collection")
    if given.docs and not reads:
        raise UserError(f"the app {given.app} takes no documents; leave out --docs")
    if searches and given.docs and "web" in engines.from_file:
        raise UserError(f"{file} describes the engine 'web', which does not search in --docs; leave them out")
    if given.collection is not None and "vectors" in engines.from_file:
        raise UserError(
            f"{file} describes the engine 'vectors', and --collection keeps its vectors with --dsn; "
            "leave one of them out"
        )
