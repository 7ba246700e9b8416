"""Options of TLS of `stretto route` and `stretto serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="certificates of tests are made by cryptography")
from support.certificates import Authority
from support.command_line import CommandLine

from stretto.engines.llms import STAND_IN


def test_options_of_tls_that_do_not_fit_are_refused_in_a_line(tmp_path: Path, stretto: CommandLine) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("one")
    _, other_key = authority.sign("two")
    for command in (("route", "--worker", "https://127.0.0.1:9"), ("serve", "--llm", STAND_IN)):
        for options, why in (
            (("--tls-certificate", certificate), "give --tls-certificate and --tls-key together"),
            (("--tls-certificate", certificate, "--tls-key", other_key), "does not fit"),
            (("--tls-certificate", certificate, "--tls-key", f"{key}.gone"), "cannot be read"),
        ):
            assert why in stretto.refuses(*command, *options)
    for options, why in (
        (("--worker-certificate", certificate), "give --worker-certificate and --worker-key together"),
        (("--worker-ca", f"{key}.gone"), "cannot be read"),
    ):
        assert why in stretto.refuses("route", "--worker", "https://127.0.0.1:9", *options)
        assert why in stretto.refuses("serve", "--worker", "https://127.0.0.1:9", *options)
    assert "have no use without workers" in stretto.refuses("serve", "--llm", STAND_IN, "--worker-ca", key)
