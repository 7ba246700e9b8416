"""Memory that a runtime shares with its processes, so that large results go straight from one to another.

    runtime ── SharedMemory: one file without a name, in memory, that every process inherits
       ├─ Region of instance 1 ── Segment, Segment, …       what a batch has left, in whole pages
       └─ Region of instance 2 ── Segment, …

Each instance writes only its own region, from its beginning on. Regions are so large that none is ever full,
and take no memory where nothing is written. A segment's pages are freed when the runtime has no reference
to it any more: nobody else decides that, so no process has to answer, and one that dies leaves its results
to those that need them. What a process has written and could not report is freed when it has ended. The file
ends with the last process that has it, however the runtime ends.

Differs from `multiprocessing.shared_memory`: no names that a killed process would leave behind, and no limit
by the size of /dev/shm.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from itertools import count
from multiprocessing.reduction import DupFd
from typing import Any

from stretto.runtime.large_values import bounds, set_apart, unpickled
from stretto.runtime.pickles import loads

LEAST_ANSWER_BYTES = 16 * 1024
"""Least total of a batch's large values that is worth a segment. Smaller ones are sent with the answer."""
_REGION_BYTES = 2**48
_NUM_REGIONS = 2**15


class SharedMemory:
    """The shared memory of a runtime and its processes. It is closed when nothing refers to it any more."""

    def __init__(self) -> None:
        """Make a new one. Raises OSError if the system cannot."""
        self.fd = os.memfd_create("stretto")
        self._numbers = count()
        weakref.finalize(self, os.close, self.fd)

    def region(self) -> Region | None:
        """Return a region for a new instance; None when all have been given out."""
        number = next(self._numbers)
        return Region(self, number * _REGION_BYTES) if number < _NUM_REGIONS else None

    @property
    def used_bytes(self) -> int:
        """Bytes of memory that segments take now."""
        return os.fstat(self.fd).st_blocks * 512

    def free(self, start: int, num_bytes: int) -> None:
        """Give the pages of a range back to the system. `start` is the beginning of a page."""
        with mmap.mmap(self.fd, num_bytes, offset=start) as pages:
            pages.madvise(mmap.MADV_REMOVE)

    def free_all(self, start: int, end: int) -> None:
        """Give all pages of a range back, however little of it was written."""
        while True:
            try:
                start = os.lseek(self.fd, start, os.SEEK_DATA)
            except OSError:  # nothing was written behind
                return
            if start >= end:
                return
            hole = min(end, os.lseek(self.fd, start, os.SEEK_HOLE))
            self.free(start, hole - start)
            start = hole


def shared_memory() -> SharedMemory | None:
    """Return new shared memory; None where the system has no files without names in memory."""
    if not hasattr(os, "memfd_create") or not hasattr(mmap, "MADV_REMOVE"):
        return None
    try:
        return SharedMemory()
    except OSError:
        return None


class SharedSegment:
    """A segment of shared memory: large results of one batch, pickled one behind the other.

    Value number `i` begins at the end of the one before it and ends at `ends[i]`, in bytes from `start`.
    """

    __slots__ = ("__weakref__", "_ends", "_fd", "_start")

    def __init__(self, fd: int, start: int, ends: Sequence[int]) -> None:
        self._fd = fd
        self._start = start
        self._ends = ends

    def __reduce__(self) -> tuple[object, ...]:
        return segment_at, (self._start, self._ends)

    def load(self, index: int) -> object:
        """Return a copy of value number `index`. Raises BadReply if it does not unpickle here."""
        lo, hi = bounds(self._ends, index)
        data = bytearray()
        while len(data) < hi - lo:  # a read has at most 2 GB
            data += os.pread(self._fd, hi - lo - len(data), self._start + lo + len(data))
        return unpickled(data)


def segment_at(start: int, ends: Sequence[int]) -> SharedSegment:
    """Stand in a pickle for a segment. `loads` of a region or a writer puts the segment in its place.

    Raises:
        TypeError: it was unpickled by anything else.
    """
    raise TypeError("references to shared memory are read only by the processes that share it")


_SEGMENT_AT = (__name__, segment_at.__name__)


class Region:
    """The part of shared memory that one instance writes, as the runtime sees it.

    Pickled for the process of that instance, it becomes the process's `Writer`.
    """

    def __init__(self, memory: SharedMemory, start: int) -> None:
        self._memory = memory
        self._start = start
        self._end = start

    def __reduce__(self) -> tuple[object, ...]:
        return _writer, (DupFd(self._memory.fd), self._start)

    def loads(self, data: bytes, *, only_own: bool = False) -> Any:
        """Unpickle a message of the instance. Its segments are freed with the last reference to them.

        The argument and the errors are those of `pickles.loads`. After an error no segment is freed.
        """
        segments: list[tuple[SharedSegment, int, int]] = []

        def segment(start: int, ends: Sequence[int]) -> SharedSegment:
            found = SharedSegment(self._memory.fd, start, ends)
            segments.append((found, start, ends[-1]))
            return found

        message = loads(data, only_own=only_own, instead={_SEGMENT_AT: segment})
        for found, start, num_bytes in segments:
            weakref.finalize(found, self._memory.free, start, num_bytes).atexit = False
            self._end = _page_end(start + num_bytes)
        return message

    def close(self) -> None:
        """Free what the instance, which has ended, has written and not reported."""
        self._memory.free_all(self._end, self._start + _REGION_BYTES)


class Writer:
    """The region of an instance as its own process sees it: it writes results there, and reads segments of
    all instances.
    """

    def __init__(self, fd: int, start: int) -> None:
        self._fd = fd
        self._limit = start + _REGION_BYTES
        self._start = self._next = start

    def loads(self, data: bytes) -> Any:
        """Unpickle a message of the runtime, which keeps the segments in it until it has an answer."""
        return loads(data, instead={_SEGMENT_AT: self._segment})

    def leave(self, results: Sequence[object]) -> Sequence[object]:
        """Write the large values among a batch's results to memory, and return the results with references
        in their places.

        The results are returned as they are if that does not pay, or if there is no memory.

        Raises:
            Exception: a value does not pickle.
        """
        self._start = self._next
        ends: list[int] = []
        left, data = set_apart(results, SharedSegment(self._fd, self._next, ends), ends, LEAST_ANSWER_BYTES)
        if not data or self._next + len(data) > self._limit:
            return results
        try:
            self._write(data)
        except OSError:
            return results
        self._next = _page_end(self._next + len(data))
        return left

    def take_back(self) -> None:
        """Use the memory of the last results again, because references to it could not be sent."""
        self._next = self._start

    def _segment(self, start: int, ends: Sequence[int]) -> SharedSegment:
        return SharedSegment(self._fd, start, ends)

    def _write(self, data: bytes) -> None:
        written = 0
        while written < len(data):  # a write has at most 2 GB
            written += os.pwrite(self._fd, memoryview(data)[written:], self._next + written)


def _writer(fd: Any, start: int) -> Writer:
    return Writer(fd.detach(), start)


def _page_end(position: int) -> int:
    """Return the end of the page that a position is in; the position itself if it is the end of a page."""
    return -(-position // mmap.PAGESIZE) * mmap.PAGESIZE
