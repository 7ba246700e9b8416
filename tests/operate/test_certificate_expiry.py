"""When certificates expire, beside a library that reads all of a certificate."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="certificates of tests are made by cryptography")
from cryptography import x509
from support.certificates import Authority

from stretto.operate.certificates import expiry_s


@pytest.mark.parametrize("days", [-300.0, 0.5, 90.0, 9_000.0, 30_000.0])  # from 2050 on in another form
def test_a_certificate_expires_when_a_library_says_so(tmp_path: Path, days: float) -> None:
    certificate, _ = Authority(tmp_path).sign("one", days=days)
    pem = Path(certificate).read_bytes()
    expected = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    assert expiry_s(pem.decode()) == expected.timestamp()
    assert (expected - datetime.now(UTC)).total_seconds() == pytest.approx(days * 86_400, abs=60)


def test_of_a_chain_the_first_one_that_expires_counts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    long, short = (Path(authority.sign(str(days), days=days)[0]).read_text() for days in (50, 5))
    assert expiry_s(long + short) == expiry_s(short + "text between\n" + long) == expiry_s(short)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_what_is_no_certificate_has_no_expiry_and_never_fails(cut: bytes, at: int) -> None:
    body = (b"\x30\x82\x01\x00" + cut)[:at].hex()
    for text in (cut.decode("latin-1"), f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"):
        assert expiry_s(text) is None
