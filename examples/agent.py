"""An agent: an LLM that calls a calculator and a search in your files, several at once, and then answers.

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
from pathlib import Path

from stretto import Deployment, Runtime, deploy, load_documents
from stretto.apps import agent
from stretto.engines.batch.calculator import CALCULATOR
from stretto.engines.batch.corpus_search import search_tool
from stretto.engines.catalogue import llm_engine, tools_engine
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.engines.scripted.standin import quote
from stretto.model.tasks import Decode, LLMTask


def write_by_rule(task: LLMTask, decode: Decode) -> str:
    """Calculate what is written as numbers and search for the question, once; then quote what was found."""
    known = {segment.name: segment.text for segment in task.prompt if segment.name}
    search = f"search: {known['question']}"
    if decode.items is not None:
        sums = re.findall(r"\d[\d\s.()]*[-+*/][-+*/\d\s.()]*\d", known["question"])
        calls = [*(f"calculate: {one}" for one in sums), search]
        return json.dumps([] if "results1" in known else calls)
    calculated, _, found = known["results1"].partition(search)
    values = re.findall(r"calculate: (.+)\n(.+)", calculated)
    return " ".join([*(f"{one} = {value}." for one, value in values), quote(known["question"], found, "")])


async def main(asked: str, paths: list[Path], llm: Deployment) -> None:
    tools = (CALCULATOR, search_tool(load_documents(paths)))
    app = agent(tools, max_turns=3)
    async with Runtime([llm, tools_engine(tools)]) as runtime:
        query = await runtime.submit(app, {"question": asked})
        async for text in query.stream("answer"):
            print(text, end="", flush=True)
        print()


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
