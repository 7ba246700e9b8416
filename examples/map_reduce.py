"""A graph that grows while it runs: summarise as many parts as there turn out to be, then combine them.

python examples/map_reduce.py examples/documents/treasure-island-opening.txt
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from stretto import DEFAULT, Component, Input, Runtime, Template, load_documents
from stretto.engines.catalogue import local_engines
from stretto.frontend.component import Builder
from stretto.graph.graph import Arg, Graph, Ref
from stretto.graph.ops import Port

FAN_IN = 4


def reduce_summaries(inputs: Mapping[str, object]) -> Graph:
    """A tree over the summaries: its shape follows from how many there are."""
    summaries = inputs["summaries"]
    assert isinstance(summaries, list)
    build = Builder()
    build.reserve("summaries")
    level = [Ref("summaries", index=i) for i in range(len(summaries))]
    while len(level) > 1:
        level = [
            build.complete(
                "combined",
                "Combine into one summary:\n{context}\nSummary:",
                {
                    "context": build.add(
                        "parts", "aggregate", tuple(Arg(str(r), r) for r in group), config={"join": "\n"}
                    )
                },
                engine="llm",
                decode={"max_tokens": 64},
            )
            for group in (level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN))
        ]
    return Graph(
        "reduce", (("summaries", "list[text]"),), tuple(build.primitives), (), (("summary", level[0]),)
    )


class MapReduce(Component):
    """Summarise each chunk, then the summaries."""

    ports = (Port("files", "list[document]"),)
    outs = {"summary": "text"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        settings = {"tokens": 256, "overlap": 0}
        chunks = build.add(
            "chunks", "chunk", (build.take("files", each=True),), engine="chunking", config=settings
        )
        summaries = build.complete(
            "summaries",
            "Summarise in one sentence:\n{context}\nSummary:",
            {"context": chunks},
            each=frozenset({"context"}),
            engine="llm",
            decode={"max_tokens": 64},
        )
        body = {"body": "reduce_summaries", "result": "text"}
        return {"summary": build.add("summary", "expand", (Arg("summaries", summaries),), config=body)}


files = Input("files", "list[document]")
summarising = MapReduce(files=files)
app = Template("map_reduce", summarising, {"summary": summarising["summary"]})
vocabulary = DEFAULT.with_expansion("reduce_summaries", reduce_summaries)


async def main(paths: list[Path]) -> None:
    async with Runtime(local_engines(), vocabulary=vocabulary) as runtime:
        print((await runtime.run(app, {"files": load_documents(paths)}))["summary"])


if __name__ == "__main__":
    asyncio.run(main([Path(path) for path in sys.argv[1:]]))
