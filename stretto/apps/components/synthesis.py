"""Answers from passages: in one call, by refining, in a tree, or as a quotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component, at_least, at_most, check_share
from stretto.graph.graph import Arg, Ref
from stretto.graph.ops import Port
from stretto.model.errors import ConfigError

MODES = ("one_shot", "tree", "refine", "quote")


class Synthesis(Component):
    """A component of an app that lets an LLM answer a question from search hits, in one of four modes.

    `one_shot` reads all hits in one prompt. `refine` answers from the first hit and improves the answer with
    each further one. `tree` answers from each hit and combines the answers, `fan_in` at a time. `quote`
    answers from the one sentence of the hits that answers the question best. If there are fewer hits than
    `num_hits`, the calls for the others are skipped; without any hit there is no answer.
    """

    ports = (Port("question", "text"), Port("hits", "list[hit]"))
    outs: ClassVar[Mapping[str, str]] = {"answer": "text"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the synthesis.

        Prompts may use {question} and {context}; `refine_prompt` also {draft}, and `combine_prompt` uses
        {drafts} instead of {context}.

        Attributes:
            mode: "one_shot", "refine", "tree" or "quote".
            num_hits: number of hits that `refine` and `tree` read.
            fan_in: number of answers that `tree` combines at a time.
            max_tokens: largest number of output tokens of a call.
            support: share of an answer's words that must stand, one after the other, in the sentence of the
                hits that answers the question best. An answer with less is replaced: by an answer that
                it was made from, if that has enough, else by the sentence. Where no hit holds half of the
                question's words, the answer says that it is probably not in the documents, and which sentence
                is nearest. 0 takes any answer. It is for small LLMs, which make things up; such an answer
                does not stream.
        """

        mode: str = "refine"
        num_hits: int = 3
        fan_in: int = 3
        max_tokens: int = 96
        support: float = 0.0
        prompt: str = "answer"
        refine_prompt: str = "refine"
        combine_prompt: str = "combine"
        engine: str = "llm"

        def __post_init__(self) -> None:
            if self.mode not in MODES:
                raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
            at_least(1, num_hits=self.num_hits, max_tokens=self.max_tokens)
            at_least(2, fan_in=self.fan_in)
            check_share(support=self.support)
            at_most(256, num_hits=self.num_hits, fan_in=self.fan_in)

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add to the app's graph one LLM call, a chain of calls or a tree of calls that answers the question,
        depending on the mode.
        """
        quoted = None
        if config.support or config.mode == "quote":
            quoted = build.add("quote", "quote", (build.take("question"), build.take("hits")))
        if quoted is not None and config.mode == "quote":
            drafts = [self._call(build, config, "answer", config.prompt, context=quoted)]
        else:
            modes = {"one_shot": self._one_shot, "refine": self._refine, "tree": self._tree}
            drafts = modes[config.mode](build, config)
        if quoted is not None and config.support:
            given = (build.take("question"), build.take("hits"), Arg("quote", quoted))
            args = (*given, *(Arg(str(d), d) for d in drafts))
            return {"answer": build.add("supported", "supported", args, config={"share": config.support})}
        if config.mode != "refine" or len(drafts) == 1:
            return {"answer": drafts[0]}
        return {"answer": build.add("answer", "select", tuple(Arg(str(d), d) for d in drafts))}

    def _one_shot(self, build: Builder, config: Config) -> list[Ref]:
        hits = build.value("hits")
        context = build.add("context", "aggregate", (Arg(str(hits), hits),), config={"join": "\n\n"})
        return [self._call(build, config, "answer", config.prompt, context=context)]

    def _refine(self, build: Builder, config: Config) -> list[Ref]:
        """Return the answers, the last one first."""
        drafts = [self._call(build, config, "draft1", config.prompt, context=_hit(build, 0))]
        for place in range(1, config.num_hits):
            context = _hit(build, place)
            name = f"draft{place + 1}"
            draft = self._call(build, config, name, config.refine_prompt, context=context, draft=drafts[0])
            drafts.insert(0, draft)
        return drafts

    def _tree(self, build: Builder, config: Config) -> list[Ref]:
        """Return the answer of the root, then those to each hit."""
        leaves = [
            self._call(build, config, f"leaf{place + 1}", config.prompt, context=_hit(build, place))
            for place in range(config.num_hits)
        ]
        level = leaves
        while len(level) > 1:
            groups = [level[i : i + config.fan_in] for i in range(0, len(level), config.fan_in)]
            level = [
                self._combine(build, config, group, is_root=len(groups) == 1) if len(group) > 1 else group[0]
                for group in groups
            ]
        return level if config.num_hits == 1 else [*level, *leaves]

    def _combine(self, build: Builder, config: Config, drafts: list[Ref], *, is_root: bool) -> Ref:
        joined = build.add(
            "drafts", "aggregate", tuple(Arg(str(d), d) for d in drafts), config={"join": "\n\n"}
        )
        return self._call(
            build, config, "answer" if is_root else "branch", config.combine_prompt, drafts=joined
        )

    def _call(self, build: Builder, config: Config, name: str, prompt: str, **values: Ref) -> Ref:
        variables = {"question": build.value("question"), **values}
        decode = {"max_tokens": config.max_tokens}
        return build.complete(name, prompt, variables, engine=config.engine, decode=decode)


def _hit(build: Builder, place: int) -> Ref:
    hits = build.value("hits")
    return Ref(hits.name, hits.port, place)
