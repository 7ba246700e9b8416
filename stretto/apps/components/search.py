"""Ready-made components of search-empowered generation: LLM call, judge, web search, choice of the context.

Source: Teola Figure 2a and §7: the 4 best results of the search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component, at_least
from stretto.graph.graph import WHEN, Arg, Ref
from stretto.graph.ops import Port
from stretto.graph.types import item_type
from stretto.model.errors import ConfigError


class Generation(Component):
    """A component of an app that asks an LLM a question, with a context (further text) if it is fed one."""

    ports = (Port("question", "text"), Port("context", "text", optional=True))
    outs: ClassVar[Mapping[str, str]] = {"text": "text"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `Generation`, which asks an LLM a question.

        Attributes:
            max_tokens: largest number of output tokens.
            prompt: name or text of a prompt with {question} and, if there is a context, {context}.
            engine: name of the LLM engine.
        """

        max_tokens: int = 96
        prompt: str = "proxy"
        engine: str = "llm"

        def __post_init__(self) -> None:
            at_least(1, max_tokens=self.max_tokens)

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the two steps of the LLM call, a prefill and a decode, to the app's graph."""
        ports = [port.name for port in self.ports if build.is_fed(port.name)]
        text = build.complete(
            self.name,
            config.prompt,
            {port: build.value(port) for port in ports},
            engine=config.engine,
            decode={"max_tokens": config.max_tokens},
        )
        return {"text": text}


class Judge(Component):
    """A component of an app that asks an LLM whether a text answers a question.

    The verdict is "yes" if the first word of the LLM's answer is "yes", else "no". The out port of
    that name delivers the text; the other one has no value, so that steps which read it are skipped.
    """

    ports = (Port("question", "text"), Port("text", "text"))
    outs: ClassVar[Mapping[str, str]] = {"yes": "text", "no": "text"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `Judge`, which asks an LLM whether a text answers a question.

        Attributes:
            max_tokens: largest number of output tokens.
            prompt: name or text of a prompt with {question} and {text}, which asks for yes or no.
            engine: name of the LLM engine.
        """

        max_tokens: int = 4
        prompt: str = "judge"
        engine: str = "llm"

        def __post_init__(self) -> None:
            at_least(1, max_tokens=self.max_tokens)

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the LLM call (a prefill and a decode) to the app's graph, and a condition on the LLM's text."""
        verdict = build.complete(
            "verdict",
            config.prompt,
            {"question": build.value("question"), "text": build.value("text")},
            engine=config.engine,
            decode={"max_tokens": config.max_tokens},
        )
        judged = build.add("judged", "condition", (Arg("value", verdict),), config={"equals": "yes"})
        return {"yes": Ref(judged.name, "yes"), "no": Ref(judged.name, "no")}


class WebSearch(Component):
    """A component of an app that searches the web (or a substitute) for one text or several.

    If its port `needed` is connected and has no value, the search is skipped.
    """

    ports = (Port("queries", "text|list[text]"), Port("needed", optional=True))
    outs: ClassVar[Mapping[str, str]] = {"hits": "list[hit]"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the search: `top_k` results for each search text, from the engine `engine`."""

        top_k: int = 4
        engine: str = "web"

        def __post_init__(self) -> None:
            if not 1 <= self.top_k <= 100:
                raise ConfigError(f"top_k must be from 1 to 100, got {self.top_k}")

    def out_types(self, in_types: Mapping[str, str], config: Config) -> Mapping[str, str]:
        """Return the type of the search's output: a list of hits, or one such list for each search text."""
        is_list = item_type(in_types["queries"]) is not None
        return {"hits": "list[list[hit]]" if is_list else "list[hit]"}

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add a `web_search` step to the app's graph. The step is skipped if `needed` is connected and has no
        value.
        """
        args = [build.take_each_if_list("queries", "queries")]
        if build.is_fed("needed"):
            args.append(build.take("needed", WHEN))
        hits = build.add(
            "found",
            "web_search",
            tuple(args),
            engine=config.engine,
            config={"k": config.top_k},
            hints=("batchable",),
        )
        return {"hits": hits}


class Reading(Component):
    """A component of an app that chooses what an LLM reads to answer: the texts found, or if there are none a
    draft.
    """

    ports = (Port("hits", "list[hit]"), Port("draft", "text"))
    outs: ClassVar[Mapping[str, str]] = {"context": "text"}

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        """Add to the app's graph a step that joins the texts found, and one that chooses them or the
        draft.
        """
        hits, draft = build.value("hits"), build.value("draft")
        texts = build.add("texts", "aggregate", (Arg(str(hits), hits),), config={"join": "\n\n"})
        context = build.add("context", "select", (Arg("texts", texts), Arg("draft", draft)))
        return {"context": context}
