"""Advanced RAG over your files, in 20 lines: index, expand, search, rerank, refine.

python examples/advanced_rag.py "What is the maximum line length?" examples/documents
"""

import asyncio
import sys
from pathlib import Path

from stretto import Input, Runtime, Template, load_documents
from stretto.components import Indexing, QueryExpansion, Reranking, Searching, Synthesis
from stretto.engines import local_engines

question, files = Input("question", "text"), Input("files", "list[document]")

indexing = Indexing(files=files)
expansion = QueryExpansion(question=question, num_queries=3)
searching = Searching(queries=expansion["queries"], indexed=indexing["indexed"], top_k=16)
reranking = Reranking(question=question, hits=searching["hits"], best=3)
# support=1.0 is for a small LLM: an answer whose words are not in the passages becomes the sentence that fits
# best, and comes as a whole. Leave it out for a larger one, whose answer streams.
synthesis = Synthesis(question=question, hits=reranking["top"], mode="refine", support=1.0)
app = Template(
    "advanced_rag",
    indexing >> expansion >> searching >> reranking >> synthesis,
    outputs={"answer": synthesis["answer"], "top": reranking["top"]},
)


async def main(asked: str, paths: list[Path]) -> None:
    async with Runtime(local_engines()) as runtime:
        query = await runtime.submit(app, {"question": asked, "files": load_documents(paths)})
        async for text in query.stream("answer"):
            print(text, end="", flush=True)
        print()
        for place in dict.fromkeys(hit.chunk.place for hit in (await query)["top"]):
            print("  from", place)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [Path(path) for path in sys.argv[2:]]))
