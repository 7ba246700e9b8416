"""Checks an Office file before a library opens it.

Such a file is a zip archive of XML parts (ECMA-376). It is refused if it is encrypted, if it would unpack to
too much, or if a part declares a document type, which the standard forbids and which entities that expand
without end need. Macros are parts that no parser here reads.
"""

from __future__ import annotations

from io import BytesIO
from zipfile import BadZipFile, ZipFile, ZipInfo

MAX_UNPACKED_BYTES = 500_000_000
_OLD_FORMAT = bytes.fromhex("d0cf11e0a1b11ae1")  # of encrypted files too
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_IS_ENCRYPTED = "is encrypted: it opens only with a password"
_DOCTYPES = tuple("<!DOCTYPE".encode(encoding) for encoding in ("ascii", "utf-16-le", "utf-16-be"))
_LONGEST_DOCTYPE = max(map(len, _DOCTYPES))
_READ_BYTES = 1 << 20


def check_package(data: bytes) -> None:
    """Check the bytes of an Office file.

    Raises:
        ValueError: it is encrypted, of an older format, no archive, too large, or declares a document type.
    """
    if data.startswith(_OLD_FORMAT):
        if _ENCRYPTED in data:
            raise ValueError(_IS_ENCRYPTED)
        raise ValueError("is an Office file of before 2007: save it as .docx, .pptx or .xlsx")
    try:
        with ZipFile(BytesIO(data)) as archive:
            parts = archive.infolist()
            if any(part.flag_bits & 1 for part in parts):
                raise ValueError(_IS_ENCRYPTED)
            if (num_bytes := sum(part.file_size for part in parts)) > MAX_UNPACKED_BYTES:
                raise ValueError(f"unpacks to {num_bytes} bytes, more than the {MAX_UNPACKED_BYTES} allowed")
            for part in parts:
                if part.filename.endswith((".xml", ".rels")):
                    _check_part(archive, part)
    except BadZipFile as cause:
        raise ValueError(f"is no readable Office file: {cause}") from cause


def _check_part(archive: ZipFile, part: ZipInfo) -> None:
    """Raise ValueError if a part declares a document type. Its text has `&lt;` for each `<`."""
    end = b""
    with archive.open(part) as file:
        while read := file.read(_READ_BYTES):
            if any(doctype in end + read for doctype in _DOCTYPES):
                raise ValueError(
                    f"its part {part.filename} declares a document type, which may hide entities"
                )
            end = read[-_LONGEST_DOCTYPE:]
