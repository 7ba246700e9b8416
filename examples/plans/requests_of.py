"""Write a request for each document, cut into chunks, as `stretto plan` and `stretto run-plan` read them.

python examples/plans/requests_of.py examples/documents/*.rst > documents.jsonl
"""

import asyncio
import json
import sys
from pathlib import Path

from stretto import Input, Runtime, Template, load_documents
from stretto.components import Splitting
from stretto.engines import local_engines

files = Input("files", "list[document]")
splitting = Splitting(files=files, tokens=256)
app = Template("chunks", splitting, outputs={"chunks": splitting["chunks"]})


async def main(paths: list[Path]) -> None:
    async with Runtime(local_engines()) as runtime:
        for document in load_documents(paths):
            outputs = await runtime.run(app, {"files": [document]})
            chunks = [chunk.text for chunk in outputs["chunks"]]
            print(json.dumps({"custom_id": document.source, "chunks": chunks}))


if __name__ == "__main__":
    asyncio.run(main([Path(path) for path in sys.argv[1:]]))
