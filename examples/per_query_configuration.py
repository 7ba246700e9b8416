"""One deployed app, many queries: each with its own settings, all on the same engines at once.

python examples/per_query_configuration.py examples/documents
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from stretto import Runtime, load_documents
from stretto.apps import naive_rag
from stretto.engines import local_engines

SETTINGS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "as it is": {},
    "small chunks": {"indexing": {"tokens": 64, "overlap": 16}},
    "one prompt": {"synthesis": {"mode": "one_shot"}, "searching": {"top_k": 5}},
    "own prompt": {"synthesis": {"prompt": "{context}\n\nIn one sentence: {question}\n"}},
}


async def main(paths: list[Path]) -> None:
    documents = load_documents(paths)
    app = naive_rag(small_llm=True)  # without it for a larger LLM than the default one
    async with Runtime(local_engines()) as runtime:
        inputs = {"question": "How many characters may a line have at most?", "files": documents}
        queries = [await runtime.submit(app, inputs, configuration=c) for c in SETTINGS.values()]
        for name, query in zip(SETTINGS, queries, strict=True):
            print(f"{name}: {(await query)['answer']}")


if __name__ == "__main__":
    asyncio.run(main([Path(path) for path in sys.argv[1:]]))
