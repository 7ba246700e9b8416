"""Writes of one turn of the loop go out together."""

from __future__ import annotations

import asyncio

import pytest
from support.virtual_loop import in_virtual_time

pytest.importorskip("httptools")

from stretto.http.joined_writes import JoinedWrites


class Noted(asyncio.Transport):
    """A transport that notes what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[bytes | str] = []
        self.unsent_bytes = 0

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.done.append(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return "close" in self.done or "abort" in self.done

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")


def joined() -> tuple[JoinedWrites, Noted]:
    transport = Noted()
    return JoinedWrites(transport, asyncio.get_running_loop()), transport


@in_virtual_time
async def test_a_head_and_a_body_are_one_write() -> None:
    writes, transport = joined()
    for turn in (b"1", b"2"):
        writes.write(b"head " + turn)
        writes.write(b" body " + turn)
        await asyncio.sleep(0)
    assert transport.done == [b"head 1 body 1", b"head 2 body 2"]


@in_virtual_time
async def test_what_was_written_goes_out_before_the_close() -> None:
    writes, transport = joined()
    writes.write(b"the last")
    writes.close()
    await asyncio.sleep(0)
    assert transport.done == [b"the last", "close"]


@in_virtual_time
async def test_an_aborted_connection_sends_nothing_more() -> None:
    writes, transport = joined()
    writes.write(b"too late")
    writes.abort()
    await asyncio.sleep(0)
    assert transport.done == ["abort"]


@in_virtual_time
async def test_much_is_not_held_until_the_turn_ends() -> None:
    writes, transport = joined()
    writes.write(b"x" * 100_000)
    assert transport.done == [b"x" * 100_000]


@in_virtual_time
async def test_a_closed_connection_whose_client_does_not_read_is_cut() -> None:
    for unsent_bytes, then in ((0, ["close"]), (1, ["close", "abort"]), (65_536, ["close", "abort"])):
        writes, transport = joined()
        transport.unsent_bytes = unsent_bytes
        writes.close()
        await asyncio.sleep(59)
        assert transport.done == ["close"]
        await asyncio.sleep(2)
        assert transport.done == then
