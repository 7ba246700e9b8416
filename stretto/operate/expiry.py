"""When certificates expire. The standard library tells that only of a peer's certificate that it trusts.

Source: RFC 5280 §4.1 (where the time stands in a certificate's DER), §4.1.2.5 (its two forms).
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime

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
