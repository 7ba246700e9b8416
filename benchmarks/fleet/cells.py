"""Results of finished runs in a folder, one file for each, so that an interrupted benchmark goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CellKey:
    """The identity of one run.

    Attributes:
        load: share of the capacity at which queries arrive; 0 for one at a time.
        settings: all else that the result depends on, as plain data.
    """

    contestant: str
    app: str
    load: float
    seed: int
    settings: Mapping[str, Any]

    @property
    def file_name(self) -> str:
        """Name of the cell's file, which differs for keys that differ."""
        text = json.dumps(asdict(self), sort_keys=True)
        digest = blake2b(text.encode(), digest_size=6).hexdigest()
        return f"{self.app}-{self.load:g}-{self.seed}-{self.contestant}-{digest}.json".replace(" ", "_")


class Cells:
    """A folder with one file for each run that is done."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def get(self, key: CellKey, run: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the result of a run: the stored one, or that of `run`, which is stored."""
        path = self._folder / key.file_name
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text("utf-8"))["result"]
            return found
        result = run()
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps({"key": asdict(key), "result": result}), "utf-8")
        unfinished.replace(path)
        return result
