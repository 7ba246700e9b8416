"""Parser of Markdown files: one section per heading, as plain text; code blocks are kept."""

from __future__ import annotations

import re
import tomllib

import yaml

from stretto.documents.html import html_sections
from stretto.documents.text import decode
from stretto.model.values import Section

_YAML = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TOML = re.compile(r"\+\+\+[ \t]*\n(.*?)^\+\+\+[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)


def parse_markdown(data: bytes) -> list[Section]:
    """Parse a Markdown file into sections of plain text, one for each heading.

    A section begins with its heading. Text before the first heading makes a section of its own. A table of
    metadata at the top, in YAML or TOML, is left out.

    Raises:
        ValueError: the bytes are not text.
    """
    from stretto.documents.markdown_tags import parser

    return html_sections(parser().render(_without_metadata(decode(data))), is_page=False)


def _without_metadata(text: str) -> str:
    """Leave out the front matter. Text between rules is none, unless it is a table of YAML."""
    if (found := _YAML.match(text)) and _is_yaml_table(found[1]):
        return text[found.end() :]
    if (found := _TOML.match(text)) and _is_toml(found[1]):
        return text[found.end() :]
    return text


def _is_yaml_table(text: str) -> bool:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return False
    return isinstance(root, yaml.MappingNode)


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return False
    return True
