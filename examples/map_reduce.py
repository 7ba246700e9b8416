"""A graph that grows while it runs: summarise as many parts as there turn out to be, then the summaries.

python examples/map_reduce.py examples/documents/treasure-island-opening.txt

The default model is too small for good summaries: what it writes here shows the form of the app alone.
"""

import asyncio
import sys
from pathlib import Path

from stretto import Input, Runtime, Template, load_documents
from stretto.components import MapReduce, Splitting
from stretto.engines import local_engines

files = Input("files", "list[document]")

splitting = Splitting(files=files, tokens=256)
summing_up = MapReduce(
    items=splitting["chunks"], map_prompt="summarise", reduce_prompt="summarise", fan_in=4, max_tokens=40
)
app = Template(
    "map_reduce",
    splitting >> summing_up,
    outputs={"summary": summing_up["text"], "parts": summing_up["parts"]},
)


async def main(paths: list[Path]) -> None:
    async with Runtime(local_engines()) as runtime:
        outputs = await runtime.run(app, {"files": load_documents(paths)})
    for part in outputs["parts"]:
        print("-", " ".join(part.split()))
    print("In short:", " ".join(outputs["summary"].split()))


if __name__ == "__main__":
    asyncio.run(main([Path(path) for path in sys.argv[1:]]))
