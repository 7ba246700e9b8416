"""The certificates of a process: read anew when their files change, and told of before they expire.

What is open goes on with the certificate of its handshake. A file that is wrong when it changes is told of
in the log, and the certificate that was read before stays. When one expires, the standard library tells
only of a peer's certificate that it trusts.

Source: RFC 5280 §4.1 (where the time stands in a certificate's DER), §4.1.2.5 (its two forms).
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import time

from stretto.http.tls import ClientTls, ServerTls, client_context, server_context
from stretto.model.errors import ConfigError
from stretto.schema.reading import FileMark, file_mark
from stretto.wire import metric_table as table
from stretto.wire.metrics import Published

_LOOK_S = 1.0
_DAY_S = 86_400.0
_WARNINGS_DAYS = (30, 14, 7, 3, 1, 0)
"""Days before a certificate expires at which it is told of in the log."""
_log = logging.getLogger(__name__)
_Marks = tuple[FileMark | None, ...]


@dataclass(slots=True)
class _Followed:
    """Files of one setting, and what was read from them.

    Attributes:
        expires_s: Unix time at which the first of its certificates expires; None without a certificate.
        days: the last entry of `_WARNINGS_DAYS` that was told of; None before the first.
    """

    tls: ServerTls | ClientTls
    context: ssl.SSLContext
    marks: _Marks
    expires_s: float | None = None
    days: int | None = None


@dataclass(slots=True)
class Certificates:
    """The certificates of a process.

    Args:
        clock: returns the Unix time.
    """

    clock: Callable[[], float] = time
    _followed: dict[ServerTls | ClientTls, _Followed] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there are files to follow."""
        return any(one.tls.files for one in self._followed.values())

    def of_server(self, tls: ServerTls) -> ssl.SSLContext:
        """Return what a server's handshakes need; each gets the newest certificate. Raises ConfigError."""
        found = self._follow(tls)
        listening = server_context(tls)

        def show_newest(handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            handshake.context = found.context

        listening.sni_callback = show_newest  # it is called without a name too
        return listening

    def of_client(self, tls: ClientTls) -> Callable[[], ssl.SSLContext]:
        """Return a function that returns what a client's next handshake needs. Raises ConfigError."""
        found = self._follow(tls)
        return lambda: found.context

    async def follow(self, look_s: float = _LOOK_S) -> None:
        """Look at the files again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(look_s)

    def reload(self) -> bool:
        """Read all files anew; return whether there are any."""
        for one in self._followed.values():
            if one.tls.files:
                self._read(one)
        return bool(self)

    def look(self) -> None:
        """Read the files anew that have changed, and tell of certificates that expire."""
        for one in self._followed.values():
            if (marks := _marks(one.tls.files)) != one.marks:
                one.marks = marks
                self._read(one)
            self._tell(one)

    def published(self) -> Iterator[Published]:
        """Yield the metric of all certificates."""
        known = {one.tls.certificate: one.expires_s for one in self._followed.values()}
        samples = [
            table.CERTIFICATE_EXPIRES.sample(at_s, file)
            for file, at_s in known.items()
            if file is not None and at_s is not None
        ]
        if samples:
            yield table.CERTIFICATE_EXPIRES, samples

    def _follow(self, tls: ServerTls | ClientTls) -> _Followed:
        found = self._followed.get(tls)
        if found is None:
            marks = _marks(tls.files)
            found = _Followed(tls, _context(tls), marks, _expiry_s(tls))
            self._followed[tls] = found
            self._tell(found)
        return found

    def _read(self, one: _Followed) -> None:
        try:
            context, expires_s = _context(one.tls), _expiry_s(one.tls)
        except (ConfigError, OSError) as error:  # a file may go between two looks at it
            _log.warning("certificates stay as they were: %s", error)
            return
        one.context, one.expires_s, one.days = context, expires_s, None
        _log.warning("%s: certificates were read anew", ", ".join(one.tls.files))

    def _tell(self, one: _Followed) -> None:
        """Tell, once for each number of days, that a certificate expires."""
        if one.expires_s is None:
            return
        left_s = one.expires_s - self.clock()
        due = [days for days in _WARNINGS_DAYS if left_s <= days * _DAY_S]
        if due and due[-1] != one.days:
            one.days = due[-1]
            if left_s > 0:
                _log.warning("certificate %s expires in %.1f days", one.tls.certificate, left_s / _DAY_S)
            else:
                _log.error("certificate %s has expired", one.tls.certificate)


def _context(tls: ServerTls | ClientTls) -> ssl.SSLContext:
    return server_context(tls) if isinstance(tls, ServerTls) else client_context(tls)


def _expiry_s(tls: ServerTls | ClientTls) -> float | None:
    return None if tls.certificate is None else expiry_s(Path(tls.certificate).read_text("latin-1"))


def _marks(files: tuple[str, ...]) -> _Marks:
    return tuple(file_mark(Path(file)) for file in files)


_PEM = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)
_VERSION, _UTC_TIME = 0xA0, 0x17


def expiry_s(pem: str) -> float | None:
    """Return the Unix time at which the first of the certificates in a PEM text expires; None if the text
    has none that can be read.
    """
    times = [when for found in _PEM.findall(pem) if (when := _expiry_of(found)) is not None]
    return min(times, default=None)


def _expiry_of(pem: str) -> float | None:
    try:
        certificate = _values(ssl.PEM_cert_to_DER_cert(pem))[0][1]
        fields = _values(_values(certificate)[0][1])
        # version (which may be missing), serial number, algorithm, issuer, validity
        validity = fields[4 if fields[0][0] == _VERSION else 3][1]
        tag, until = _values(validity)[1]
        text = until.decode("ascii")
        if tag == _UTC_TIME:  # years 50 to 99 are those of the last century
            text = ("19" if text >= "5" else "20") + text
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (ValueError, IndexError, OverflowError):
        return None


def _values(der: bytes) -> list[tuple[int, bytes]]:
    """Return the tags and contents of the values in DER that stand behind each other."""
    found, at = [], 0
    while at < len(der):
        tag, size = der[at], der[at + 1]
        at += 2
        if size >= 0x80:
            num = size & 0x7F
            size = int.from_bytes(der[at : at + num], "big")
            at += num
        if at + size > len(der):
            raise ValueError("a value is cut")
        found.append((tag, der[at : at + size]))
        at += size
    return found
