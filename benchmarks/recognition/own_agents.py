"""Calls of the agent that comes with Stretto, recorded while it runs on a scripted model. It writes its calls
of tools as a JSON list, and each of its prompts is one text. Nothing names the query to which a call belongs.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

from benchmarks.recognition.calls import TEXT, TrueCall, text_answer
from stretto.apps import agent
from stretto.documents.load import load_documents
from stretto.engines.batch.corpus_search import search_tool
from stretto.engines.catalogue import tools_engine
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.engines.scripted.standin import quoted_answer
from stretto.model.deployment import deploy
from stretto.model.tasks import Decode, LLMTask
from stretto.runtime.runtime import Runtime

_DOCUMENTS = Path(__file__).parents[2] / "examples" / "documents"
_NUM_QUESTIONS = 24
_NUM_WORDS = (6, 10)
"""Least and most words of a search."""


class _Recorder:
    """A model whose text is scripted, and what it was asked. A query's calls are some seconds apart."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.sessions: dict[str, list[TrueCall]] = {}

    def answer(self, task: LLMTask, decode: Decode) -> str:
        """Search twice for some words of what is known, two times; then quote what was found."""
        known = {segment.name: segment.text for segment in task.prompt if segment.name}
        num_results = sum(name.startswith("results") for name in known)
        rng = random.Random(f"{self._seed} {known['question']} {num_results}")
        if decode.items is None:
            text = quoted_answer(known["question"], known.get("results1", ""), "")
        elif num_results == 2:
            text = "[]"
        else:
            words = " ".join(known.values()).split()
            searches = [" ".join(rng.sample(words, rng.randint(*_NUM_WORDS))) for _ in range(2)]
            text = json.dumps([f"search: {one}" for one in searches])
        self._record(task, text, rng)
        return text

    def _record(self, task: LLMTask, text: str, rng: random.Random) -> None:
        calls = self.sessions.setdefault(task.query, [])
        start_s = calls[-1].end_s + rng.uniform(0.1, 3) if calls else rng.uniform(0, 20)
        fields = {"model": "m", "prompt": "".join(segment.text for segment in task.prompt)}
        end_s = start_s + rng.uniform(1, 5)
        calls.append(TrueCall(task.query, start_s, end_s, TEXT, fields, text_answer(text), "own agent"))


def own_calls(seed: int) -> list[list[TrueCall]]:
    """Return the calls of an agent for some questions about the documents that come with the examples."""
    recorder = _Recorder(seed)
    documents = load_documents([_DOCUMENTS])
    words = [word for document in documents for section in document.sections for word in section.text.split()]
    rng = random.Random(seed)
    questions = []
    for _ in range(_NUM_QUESTIONS):
        start = rng.randrange(len(words) - 12)
        questions.append(f"What is said about this: {' '.join(words[start : start + 12])}?")

    async def run() -> None:
        tools = (search_tool(documents),)
        app = agent(tools, max_turns=3)
        llm = deploy(
            "llm", lambda _: ScriptedLLM(recorder.answer, max_running=4), contract="llm", keeps_state=True
        )
        async with Runtime([llm, tools_engine(tools)]) as runtime:
            await asyncio.gather(*(runtime.run(app, {"question": question}) for question in questions))

    asyncio.run(run())
    return list(recorder.sessions.values())
