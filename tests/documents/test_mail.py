"""Mails keep who wrote what to whom and when, and name what is attached."""

from __future__ import annotations

from email.message import EmailMessage
from pathlib import Path

import pytest

from stretto.documents import load_documents
from stretto.documents.mail import parse_mail
from stretto.model.errors import DocumentError

HEAD = "From: Ada <ada@example.org>\nTo: Bob <bob@example.org>\nDate: Fri, 01 Mar 2024 09:00:00 +0100"


def mail(subject: str = "The lamp") -> EmailMessage:
    message = EmailMessage()
    message["From"] = "Ada <ada@example.org>"
    message["To"] = "Bob <bob@example.org>"
    message["Date"] = "Fri, 01 Mar 2024 09:00:00 +0100"
    message["Subject"] = subject
    return message


def test_a_mail_begins_with_its_headers_and_ends_with_what_is_attached(tmp_path: Path) -> None:
    message = mail("Żółta lamp")
    message.set_content("It is here.\n\nAda")
    message.add_alternative("<p>It is <b>there</b>.", subtype="html")
    message.add_attachment(b"12345", "application", "pdf", filename="bill.pdf")
    message.add_attachment("text", filename="notes.txt")
    path = tmp_path / "a.eml"
    path.write_bytes(message.as_bytes())
    (document,) = load_documents([path])
    (section,) = document.sections
    assert section.title == "Żółta lamp"
    assert section.text == (
        f"{HEAD}\nSubject: Żółta lamp\n\nIt is here.\n\nAda\n\nAttachments, which are not read:\n"
        "- bill.pdf (application/pdf, 5 bytes)\n- notes.txt (text/plain, 5 bytes)"
    )


def test_a_mail_in_html_is_read_as_text() -> None:
    message = mail()
    message.set_content("<h1>Lamp</h1><p>It is <b>here</b>.</p><script>no()</script>", subtype="html")
    (section,) = parse_mail(message.as_bytes())
    assert section.text == f"{HEAD}\nSubject: The lamp\n\nLamp\n\nIt is here."


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"Subject: a\nContent-Type: text/plain; charset=no-such\n\nna\xc3\xafve", "Subject: a\n\nnaïve"),
        (b"From: a@b\nTo: =?utf-8?q?=FF?= <\nDate: never\n\nx", "From: a@b"),
        (b"Subject: a\n\n", "Subject: a"),
    ],
)
def test_mails_that_break_rules_are_read_as_far_as_they_go(data: bytes, text: str) -> None:
    (section,) = parse_mail(data)
    assert section.text.startswith(text)


def test_a_text_without_headers_is_no_mail(tmp_path: Path) -> None:
    path = tmp_path / "a.eml"
    path.write_text("Just a text.\n\nNo mail.")
    with pytest.raises(DocumentError, match="is no mail"):
        load_documents([path])


def test_a_mail_of_endless_parts_costs_itself_alone(tmp_path: Path) -> None:
    head = b"".join(
        b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n' % (n, n) for n in range(5_000)
    )
    path = tmp_path / "a.eml"
    path.write_bytes(b"Subject: a\n" + head + b"\ntext")
    (tmp_path / "b.eml").write_bytes(b"Subject: b\n\ntext")
    documents = load_documents([tmp_path], on_bad=lambda error: None)
    assert documents[-1].source == str(tmp_path / "b.eml")


@pytest.mark.parametrize(
    "head", [b"Subject: ", b"Content-Disposition: attachment; filename=", b"Content-Type: text/plain; name="]
)
def test_a_header_that_would_take_much_memory_to_decode_is_refused(head: bytes) -> None:
    words = b"=?utf-8?q?" + b"a" * 50 + b"?=\n "
    mail = b"From: a@b\n" + head + words * 2_000 + b"\n\nText."
    with pytest.raises(ValueError, match="characters; 100000 are allowed"):
        parse_mail(mail)
