"""A Markdown parser that tells tags of HTML from text with "<" in it, as in `List<T>` or "the <main> tag".

A tag is markup if its partner stands in the same paragraph or, for HTML blocks, in a block of the document.
Tags that need no partner are markup too: empty elements, tags with "/>", and tags in small letters with a
value. All other tags are text. A script, a comment or the like that never ends is text as well; in CommonMark
it would take up the rest of the document.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.common.html_re import close_tag, open_tag
from markdown_it.rules_block import StateBlock, html_block
from markdown_it.rules_core import StateCore

_TAG = re.compile(f"(?=</?(?P<name>[A-Za-z][A-Za-z0-9-]*))(?:{open_tag}|{close_tag})")
_EMPTY = frozenset({"br", "hr", "img", "wbr"})
_OPEN_ENDED = frozenset(
    {"colgroup", "dd", "dt", "li", "option", "p", "tbody", "td", "tfoot", "th", "thead", "tr"}
)
_RAW = re.compile("</?(?:script|style)", re.IGNORECASE)
_ENDS = (
    *(
        (re.compile(f"<{tag}(?=[\\s>])", re.IGNORECASE), f"</{tag}>")
        for tag in ("script", "pre", "style", "textarea")
    ),
    (re.compile("<!--"), "-->"),
    (re.compile(r"<\?"), "?>"),
    (re.compile("<![A-Za-z]"), ">"),
    (re.compile(r"<!\[CDATA\["), "]]>"),
)
"""Beginnings of HTML blocks that go on until a mark comes, over blank lines too, and these marks."""


def parser() -> MarkdownIt:
    """Return a parser of CommonMark with tables, in whose output all HTML is markup."""
    parser = MarkdownIt("commonmark").enable("table")
    parser.block.ruler.at("html_block", _ended_html_block, {"alt": ["paragraph", "reference", "blockquote"]})
    parser.core.ruler.push("tags", _tell_tags)
    return parser


def _ended_html_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Parse an HTML block, unless its end mark never comes."""
    start = state.bMarks[start_line] + state.tShift[start_line]
    for beginning, mark in _ENDS:
        if beginning.match(state.src, start) and _last(state, mark) < start:
            return False
    return html_block(state, start_line, end_line, silent)


def _last(state: StateBlock, mark: str) -> int:
    """Return the offset of the last `mark` in the document, -1 if there is none. It is searched for once."""
    offsets: dict[str, int] = state.env.setdefault("last", {})
    if mark not in offsets:
        marks = re.finditer(re.escape(mark), state.src, re.IGNORECASE)
        offsets[mark] = max((found.start() for found in marks), default=-1)
    return offsets[mark]


def _tell_tags(state: StateCore) -> None:
    """Make text of all tags in the parsed document that are no markup."""
    blocks = [token for token in state.tokens if token.type == "html_block"]
    for token in blocks:
        token.content = _without_comments(token.content)
    markup = _markup([token.content for token in blocks], open_ended=_OPEN_ENDED)
    for token, kept in zip(blocks, markup, strict=True):
        token.content = _rewritten(token.content, kept)
    for inline in state.tokens:
        tags = [token for token in inline.children or () if token.type == "html_inline"]
        for token in tags:
            token.content = _without_comments(token.content)
        for token, kept in zip(tags, _markup([token.content for token in tags]), strict=True):
            if not kept or _RAW.match(token.content):  # without a tag, it is a declaration or the like
                token.type = "text"


def _markup(texts: Sequence[str], open_ended: frozenset[str] = frozenset()) -> list[set[int]]:
    """Return, for each text, the offsets of those of its tags that are markup."""
    found: list[set[int]] = [set() for _ in texts]
    unpaired: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for index, tag in _tags(texts):
        name = tag["name"]
        key, is_end = name.lower(), tag[0].startswith("</")
        if is_end and unpaired[key]:
            at, start = unpaired[key].pop()
            found[at].add(start)
            found[index].add(tag.start())
        elif not is_end:
            unpaired[key].append((index, tag.start()))
            has_value = "=" in tag[0] and name.islower()
            if key in _EMPTY or key in open_ended or has_value or tag[0].endswith("/>"):
                found[index].add(tag.start())
    return found


def _tags(texts: Iterable[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for index, text in enumerate(texts):
        for tag in _TAG.finditer(text):
            yield index, tag


def _without_comments(html: str) -> str:
    parts: list[str] = []
    after = 0
    while (start := html.find("<!--", after)) >= 0 and (end := html.find("-->", start)) >= 0:
        parts.append(html[after:start])
        after = end + 3
    return "".join(parts) + html[after:]


def _rewritten(html: str, kept: set[int]) -> str:
    """Return HTML with its tags at the offsets `kept`, and every other "<" as text."""
    parts: list[str] = []
    after = 0
    for tag in _TAG.finditer(html):
        if tag.start() in kept:
            parts += html[after : tag.start()].replace("<", "&lt;"), tag[0]
            after = tag.end()
    return "".join(parts) + html[after:].replace("<", "&lt;")
