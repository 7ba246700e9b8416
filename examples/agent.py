"""An agent: an LLM that calls Python functions, several at once, and then answers.

python examples/agent.py "What is 79 - 72, and what may be 72 characters long?" examples/documents
python examples/agent.py "…" examples/documents --llm http://127.0.0.1:8000   (any OpenAI-compatible server)

The default model is too small to be an agent. Without a server, the rule below stands in for the model: it
writes the calls that a model might write, and quotes the answer. So this shows the turns, the tools side by
side and the streaming, and no intelligence.
"""

import argparse
import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

from stretto import Deployment, Runtime, deploy, load_documents
from stretto.apps import agent
from stretto.engines import llm_engine, tools_engine
from stretto.engines.batch.calculator import calculate
from stretto.engines.batch.corpus_search import CorpusSearch, CorpusSearchConfig
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.engines.scripted.standin import quoted_answer
from stretto.model.tasks import Decode, LLMTask


def search_in(paths: list[Path]) -> Callable[..., list[str]]:
    """Return a tool that searches files."""
    corpus = CorpusSearch(CorpusSearchConfig(tuple(load_documents(paths))))

    def search(words: str, best: int = 2) -> list[str]:
        """Find the passages of the documents that have given words.

        Args:
            words: words to search for
            best: number of passages
        """
        return [hit.chunk.text for hit in corpus.hits(words, best)]

    return search


async def main(asked: str, paths: list[Path], llm: Deployment) -> None:
    # Name, docstring and annotations are what the LLM reads.
    tools: list[Callable[..., object]] = [calculate, search_in(paths)]
    app = agent(tools, instructions="Answer with the help of the documents.", max_turns=3)
    async with Runtime([llm, tools_engine(tools)]) as runtime:
        query = await runtime.submit(app, {"question": asked})
        async for text in query.stream("answer"):
            print(text, end="", flush=True)
        print()


def write_by_rule(task: LLMTask, decode: Decode) -> str:
    """Calculate what is written as numbers and search for the question, once; then quote what was found."""
    known = {segment.name: segment for segment in task.prompt if segment.name}
    question = known["question"].text
    if decode.items is not None:
        sums = re.findall(r"\d[\d\s.()]*[-+*/][-+*/\d\s.()]*\d", question)
        calls = [{"name": "calculate", "arguments": {"expression": one}} for one in sums]
        calls.append({"name": "search", "arguments": {"words": question}})
        return json.dumps([] if "results1" in known else calls)
    results = known["results1"].tools
    assert results is not None
    *calculated, found = results.calls
    values = [f"{json.loads(one.arguments)['expression']} = {one.text}." for one in calculated]
    return " ".join([*values, quoted_answer(question, found.text, "")])


def rule() -> Deployment:
    """The rule as an engine."""
    return deploy(
        "llm", lambda _: ScriptedLLM(write_by_rule, max_running=4), contract="llm", keeps_state=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("question")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--llm", help="URL of a server")
    given = parser.parse_args()
    served = llm_engine(given.llm, api="chat") if given.llm else rule()
    asyncio.run(main(given.question, given.paths, served))
