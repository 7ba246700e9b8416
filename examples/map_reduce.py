"""A graph that grows while it runs: summarise as many parts as there turn out to be, then the summaries.

python examples/map_reduce.py examples/documents/treasure-island-opening.txt
python examples/map_reduce.py FILE --llm http://127.0.0.1:8000   (any OpenAI-compatible server)

The default model is too small to summarise. Without a server, the rule below stands in for the model: it
quotes the sentence whose words come most often in what it reads. So this shows the parts, their summaries
side by side and the tree of calls that combines them, and no intelligence.
"""

import argparse
import asyncio
import math
import re
from collections import Counter
from pathlib import Path

from stretto import Deployment, Input, Runtime, Template, deploy, load_documents
from stretto.components import MapReduce, Splitting
from stretto.engines import llm_engine, local_engines
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.tasks import Decode, LLMTask

files = Input("files", "list[document]")

splitting = Splitting(files=files, tokens=256)
summing_up = MapReduce(
    items=splitting["chunks"], map_prompt="summarise", reduce_prompt="summarise", fan_in=4, max_tokens=60
)
app = Template(
    "map_reduce",
    splitting >> summing_up,
    outputs={"summary": summing_up["text"], "parts": summing_up["parts"]},
)


async def main(path: Path, llm: Deployment) -> None:
    async with Runtime(local_engines(llm=llm)) as runtime:
        outputs = await runtime.run(app, {"files": load_documents([path])})
    for part in outputs["parts"]:
        print("-", part)
    print("In short:", outputs["summary"])


def quote_by_rule(task: LLMTask, decode: Decode) -> str:
    """Quote the whole sentence of the text, of 8 to 40 words, whose longer words the text repeats most."""
    text = next(segment.text for segment in task.prompt if segment.name)
    words = Counter(re.findall(r"[a-z]{5,}", text.lower()))
    ends = re.split(r"(?<=[.!?])(?<!Dr\.)[\"”’]?\s+(?=[\"“‘A-Z])", " ".join(text.split()))
    whole = [one for one in ends if 8 <= len(one.split()) <= 40 and one[0].isupper() and one[-1] in ".!?"]

    def weight(sentence: str) -> float:
        found = set(re.findall(r"[a-z]{5,}", sentence.lower()))
        return sum(words[word] - 1 for word in found) / math.sqrt(len(sentence.split()))

    return max(whole or ends, key=weight)


def rule() -> Deployment:
    """The rule as an engine."""
    return deploy(
        "llm", lambda _: ScriptedLLM(quote_by_rule, max_running=4), contract="llm", keeps_state=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--llm", help="URL of a server")
    given = parser.parse_args()
    asyncio.run(main(given.path, llm_engine(given.llm) if given.llm else rule()))
