"""Parser of mails (.eml): one section, with the sender, receivers, date and subject at its top, then the
text, and the names of what is attached.
"""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import cast

from stretto.documents.html import html_sections
from stretto.documents.text import decode
from stretto.model.values import Section

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_MAX_HEADER = 100_000
"""Most characters of a header. To decode one takes some 200 times its size in memory."""


def parse_mail(data: bytes) -> list[Section]:
    """Parse a mail, in plain text if it has that and else in HTML.

    Raises:
        ValueError: the bytes hold no header of a mail, or one that is too long.
    """
    mail = message_from_bytes(data, policy=policy.default)
    for part in mail.walk():
        for name, value in part.raw_items():
            if len(value) > _MAX_HEADER:
                raise ValueError(
                    f"has a header {name!r} of {len(value)} characters; {_MAX_HEADER} are allowed"
                )
    headers = {name: text for name in _HEADERS if (text := _header(mail, name))}
    if not headers:
        raise ValueError(f"is no mail: it has none of the headers {', '.join(_HEADERS)}")
    body = mail.get_body(("plain", "html"))
    texts = ["\n".join(f"{name}: {text}" for name, text in headers.items())]
    if body is not None:
        texts.append(_body_text(cast(EmailMessage, body)))
    attached = [
        _attachment(part)
        for part in mail.walk()
        if part.get_content_disposition() == "attachment" or part.get_filename()
    ]
    if attached:
        texts.append("Attachments, which are not read:\n" + "\n".join(f"- {one}" for one in attached))
    return [Section("\n\n".join(filter(None, texts)), title=headers.get("Subject"))]


def _header(mail: EmailMessage, name: str) -> str:
    """Return a header as one line; "" if it is absent, or so wrong that `email` cannot read it."""
    try:
        return " ".join(str(mail.get(name, "")).split())
    except Exception:  # `email` raises errors of many kinds about headers that break its grammar
        return ""


def _body_text(body: EmailMessage) -> str:
    """Return the text of a body, whose declared encoding may be wrong."""
    payload = body.get_payload(decode=True)
    text = decode(payload if isinstance(payload, bytes) else b"", body.get_content_charset())
    if body.get_content_subtype() == "html":
        return "\n\n".join(section.text for section in html_sections(text, is_page=False))
    return text.strip()


def _attachment(part: object) -> str:
    """Return the name, type and size of an attached file."""
    mail = cast(EmailMessage, part)
    payload = mail.get_payload(decode=True)
    size = f", {len(payload)} bytes" if isinstance(payload, bytes) else ""
    return f"{mail.get_filename() or 'without a name'} ({mail.get_content_type()}{size})"
