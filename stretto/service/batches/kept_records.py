"""The files and batches that a service keeps, by their tenants; what is on the disk is the store's matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from stretto.service.batches.records import ENDED, BatchRecord, StoredFile


class KeptRecords:
    """The files and batches of all tenants, as they were saved last.

    Attributes:
        all_files: files by tenant and id.
        num_bytes: bytes of the files of a tenant, those that are being taken in among them.
    """

    def __init__(self) -> None:
        self.all_files: dict[str, dict[str, StoredFile]] = {}
        self.num_bytes: Counter[str] = Counter()
        self._batches: dict[str, dict[str, BatchRecord]] = {}

    def files(self, tenant: str) -> Mapping[str, StoredFile]:
        """Return the files of a tenant by their ids, the eldest first."""
        return self.all_files.get(tenant, {})

    def batches(self, tenant: str) -> Mapping[str, BatchRecord]:
        """Return the batches of a tenant by their ids, the eldest first."""
        return self._batches.get(tenant, {})

    def unended(self) -> list[BatchRecord]:
        """Return the batches of all tenants that have not ended."""
        return [one for own in self._batches.values() for one in own.values() if one.status not in ENDED]

    def expired(self, now_s: float, kept_s: float) -> Iterator[StoredFile | BatchRecord]:
        """Iterate over the files whose time has come, and the batches that ended `kept_s` seconds ago."""
        for files in self.all_files.values():
            for file in files.values():
                if now_s >= (file.created_at + kept_s if file.expires_at is None else file.expires_at):
                    yield file
        for batches in self._batches.values():
            for batch in batches.values():
                if (ended_s := batch.times.get(batch.status)) is None or batch.status not in ENDED:
                    continue
                if now_s >= ended_s + kept_s:
                    yield batch

    def put(self, one: StoredFile | BatchRecord) -> None:
        """Add a file or a batch, or replace it."""
        if isinstance(one, StoredFile):
            if one.id not in (own := self.all_files.setdefault(one.tenant, {})):
                self.num_bytes[one.tenant] += one.num_bytes
            own[one.id] = one
        else:
            self._batches.setdefault(one.tenant, {})[one.id] = one

    def drop(self, one: StoredFile | BatchRecord) -> bool:
        """Forget a file or a batch; return whether it was there."""
        if isinstance(one, BatchRecord):
            return self._batches.get(one.tenant, {}).pop(one.id, None) is not None
        if self.all_files.get(one.tenant, {}).pop(one.id, None) is None:
            return False
        self.num_bytes[one.tenant] -= one.num_bytes
        return True
