"""Replaces binary data that is written as text, such as a picture in base64, by a short mark.

Nobody asks for such data, and it is longer than all the prose around it. Data URIs (RFC 2397) are recognised
by their beginning. Other base64 is a long run of its letters, or many lines of 60 to 76 of them, with capital
letters, small letters and digits; so identifiers, paths, checksums in hex and genomes stay.

A run of one character is such data too if it has 2,000 of them or more: 100,000 times "<" are 100,000 tokens,
which an embedder takes half a minute to read.
"""

from __future__ import annotations

import re

_DATA_URI = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?:;[\w.+=-]+)*+,[^\s\"'<>()\[\]`]{200,}+")
_LINE = r"[A-Za-z0-9+/]{60,76}+ (?= ={0,2} (?:[ \n]|\Z))"
_BASE64 = re.compile(
    rf"""
      (?<! [A-Za-z0-9+/_-]) (?:
          [A-Za-z0-9+/_-]{{400,}}+
        | {_LINE} (?: [ \n] [ \t]*+ {_LINE} ){{5,}}+ (?: [ \n] [ \t]*+ [A-Za-z0-9+/]{{1,76}}+ (?= =))?
      ) ={{0,2}}+
    """,
    re.VERBOSE,
)
_RUN = re.compile(r"(\S)\1{15}\1*+")  # matched whole where it is short too, so that no part is tried twice
_MIN_RUN = 2000
_KINDS = (re.compile("[A-Z]"), re.compile("[a-z]"), re.compile("[0-9]"))


def without_blobs(text: str) -> str:
    """Return a text with "[N characters of TYPE]" in place of data URIs, base64, and runs of one character.

    The time is linear in the length of the text.
    """
    return _RUN.sub(_run_mark, _BASE64.sub(_base64_mark, _DATA_URI.sub(_data_mark, text)))


def _data_mark(uri: re.Match[str]) -> str:
    return f"[{len(uri[0])} characters of {uri['type'] or 'data'}]"


def _run_mark(run: re.Match[str]) -> str:
    return run[0] if len(run[0]) < _MIN_RUN else f"[{len(run[0])} characters of {run[1]}]"


def _base64_mark(run: re.Match[str]) -> str:
    is_base64 = all(kind.search(run[0]) for kind in _KINDS)
    return f"[{len(run[0])} characters of base64]" if is_base64 else run[0]
