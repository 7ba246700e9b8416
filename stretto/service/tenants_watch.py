"""Follows an engines file: its tenants, their keys and limits count as soon as the file changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from stretto.model.errors import StrettoError
from stretto.schema.reading import FileMark, file_mark, read_tables
from stretto.service.config import read_service_config
from stretto.service.tenants import Tenants

_LOOK_S = 1.0


async def follow_tenants(
    file: Path, tenants: Tenants, say: Callable[[str], None], look_s: float = _LOOK_S
) -> None:
    """Take the tenants of an engines file anew whenever it changes. If it is wrong then, all stay as they
    were; `say` is told. It goes on until it is cancelled.
    """
    seen: FileMark | None = None
    while True:
        mark = await asyncio.to_thread(file_mark, file)
        if mark is None or mark == seen:
            await asyncio.sleep(look_s)
            continue
        is_first, seen = seen is None, mark
        try:
            tenants.replace(await asyncio.to_thread(lambda: read_service_config(read_tables(file))))
        except StrettoError as error:
            say(f"the tenants stay as they were: {error}")
        else:
            if is_first:  # it is as it was when the service began
                continue
            say(f"{file} has changed: its tenants, keys and limits count from now on")
