"""The line of a key is that of the text, however the table is written."""

from __future__ import annotations

import tomllib
from typing import Any

from stretto.schema.lines import KeyPath, key_lines

TEXT = """\
# comment = 1
top = 1
[machine]
devices = [
    "cuda:0",
]
memory = { "cuda:0" = 1 }

[[replica]]
engine = "a"  # [[replica]]
config.path = "p"
note = '''
engine = "not a key"
[not.a.table]
'''
after = 1
[[replica]]
"engine" = "b"
[replica.config]
path = "q"
text = \"\"\"one line\"\"\"
  ["router"]
'two words' = 2
"""


def test_tables_within_tables_are_told_apart() -> None:
    lines = key_lines("[[a.b]]\nc = 1\n[[a.b]]\nc = 2\n[[d]]\n[[d.e]]\n[[d]]\n[[d.e]]\nf = 3\n")
    assert lines[("a", "b", 1, "c")] == 4
    assert lines[("d", 1, "e", 0, "f")] == 9


def paths(values: Any, path: KeyPath = ()) -> list[KeyPath]:
    """Every path in parsed TOML."""
    found = [path] if path else []
    items = (
        values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    )
    for key, value in items:
        if not isinstance(values, list) or isinstance(value, dict):
            found += paths(value, (*path, key))
    return found


def test_keys_are_found_where_they_stand() -> None:
    lines = key_lines(TEXT)
    assert lines[("top",)] == 2
    assert lines[("machine",)] == 3
    assert lines[("machine", "devices")] == 4
    assert lines[("machine", "memory")] == 7
    assert lines[("replica", 0)] == 9
    assert lines[("replica", 0, "engine")] == 10
    assert lines[("replica", 0, "config")] == lines[("replica", 0, "config", "path")] == 11
    assert lines[("replica", 0, "note")] == 12
    assert lines[("replica", 0, "after")] == 16
    assert lines[("replica", 1, "engine")] == 18
    assert lines[("replica", 1, "config")] == 19
    assert lines[("replica", 1, "config", "path")] == 20
    assert lines[("router",)] == 22
    assert lines[("router", "two words")] == 23


def test_exactly_the_keys_of_the_parser_are_found() -> None:
    inline = {("machine", "memory", "cuda:0")}
    assert set(key_lines(TEXT)) == set(paths(tomllib.loads(TEXT))) - inline
