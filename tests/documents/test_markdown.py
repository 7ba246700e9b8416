"""Markdown: what only looks like HTML or like metadata is text, and nothing is lost."""

from __future__ import annotations

import gc
import time

import pytest

from stretto.documents.markdown import parse_markdown
from stretto.model.values import Section


def text_of(markdown: str) -> str:
    return "\n\n".join(section.text for section in parse_markdown(markdown.encode()))


# Tags


@pytest.mark.parametrize(
    "prose",
    [
        "Returns List<String> or Vec<i>.",
        "Map<K, V> and <T extends Foo> are generic.",
        "Use <main> for content and <footer> below.",
        "Write to <host>:<port>/v1 or <your name here>.",
        "Put <script> and </script> around it, with <style> above.",
        "It begins with <!DOCTYPE html> or <?xml version='1.0'?>.",
        "if a <b and c> d: x << 3",
        "An </div> alone, <template>, <noscript>, <svg> and <title>.",
    ],
)
@pytest.mark.parametrize("frame", ["{}", "# {}", "- {}", "> {}", "Before.\n\n{}\n\nAfter."])
def test_text_that_looks_like_tags_is_text(prose: str, frame: str) -> None:
    expected = frame.replace("# ", "").replace("> ", "").format(prose)
    assert text_of(frame.format(prose)) == expected


@pytest.mark.parametrize(
    "tag", ["main", "nav", "footer", "script", "style", "template", "textarea", "pre", "T"]
)
def test_a_tag_that_begins_a_line_takes_nothing_along(tag: str) -> None:
    markdown = f"Before.\n\n<{tag}> is a tag.\n\n# Title\n\nAfter *it*."
    assert text_of(markdown) == f"Before.\n\n<{tag}> is a tag.\n\nTitle\n\nAfter it."


@pytest.mark.parametrize("begin", ["<!--", "<?php", "<![CDATA[", "<script>", "<!-- a --> <!--"])
def test_what_never_ends_takes_nothing_along(begin: str) -> None:
    sections = parse_markdown(f"{begin} and so on\n\n# Title\n\nThe *end*.".encode())
    assert sections[-1] == Section("Title\n\nThe end.", title="Title")
    assert "and so on" in sections[0].text


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        (
            "Some <b>bold</b>, <em class='x'>set</em> words<br>and <img src='x.png'>more.",
            "Some bold, set words\nand more.",
        ),
        ("<details>\n<summary>More</summary>\n\nThe *text*.\n\n</details>", "More\n\nThe text."),
        ("<main>\n\nOnly this?\n\n</main>\n\nNo, this too.", "Only this?\n\nNo, this too."),
        ("<nav>\n\n- [Home](/)\n\n</nav>\n\nText.", "- Home\n\nText."),
        ("<Card title='x'>Inside.</Card>", "Inside."),
        ("<Tabs>\n<Tab name='x' />\n\nText.\n\n</Tabs>", "Text."),
        ("<p align='center'>\nText.", "Text."),
        ("<table><tr><td>a<td>b<tr><td>c</table>", "| a: c"),
        ("<pre>\nList<String> x\n</pre>", "List<String> x"),
        ("One <!-- no --> two.\n\n<!-- no\n\nnothing -->\n\nThree.", "One two.\n\nThree."),
        ("<script>\nlet x;\n\nlet y;\n</script>\n\nText.", "Text."),
        ("<template>\n\n## Inside\n\n</template>", "Inside"),
    ],
)
def test_markup_is_left_out(markdown: str, expected: str) -> None:
    assert text_of(markdown) == expected


def test_a_heading_in_html_begins_a_section() -> None:
    sections = parse_markdown(b"<h1 align='center'>Name</h1>\n\nWords.\n\n## Next\n\nMore.")
    assert [section.title for section in sections] == ["Name", "Next"]


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("`List<T>` and ``a `<b>` c``", "List<T> and a `<b>` c"),
        ("```html\n<main>\n\n<!-- kept -->\n</main>\n```", "<main>\n\n\t<!-- kept -->\n\t</main>"),
        ("````md\n```py\nx: List[T]\n```\n````", "```py\n\tx: List[T]\n\t```"),
        ("~~~\n```\n<nav>\n~~~", "```\n\t<nav>"),
        ("    <script>\n    indented", "<script>\n\tindented"),
        ("Run:\n\n```sh\n# twice\na --b \\\n  -c\nd\n```", "Run:\n\n\t# twice\na --b \\\n  -c\n\td"),
        ("```\nf(\n  1,\n)\ng()\n```", "f(\n  1,\n)\n\tg()"),
        ("```\n" + "(\n" * 14 + "```", "(\n" * 12 + "\t(\n("),  # an open bracket ends
    ],
)
def test_code_keeps_its_lines_and_each_statement_has_a_mark(markdown: str, expected: str) -> None:
    assert text_of(markdown) == expected


def test_a_mark_of_a_page_of_tags_costs_linear_time() -> None:
    for text in ("<script>\n\n", "<!-- \n\n", "<div>\n\n", "a <b> c <!-- ", "<T x='", "<div><!-- "):
        few, many = ((text * num).encode() for num in (500, 4_000))
        assert any(_seconds(many) < 16 * _seconds(few) + 0.5 for _ in range(3)), text


def _seconds(data: bytes) -> float:
    """CPU time to parse a page, without garbage collections, which look at all that other tests have left."""
    gc.disable()
    try:
        began_s = time.process_time()
        parse_markdown(data)
        return time.process_time() - began_s
    finally:
        gc.enable()


# Metadata


@pytest.mark.parametrize(
    "metadata",
    [
        "---\ntitle: T\ntags: [a, b]\n---\n",
        "---\na: |\n  x\n...\n",
        "+++\ntitle = 'T'\n+++\n",
        "---  \r\nk: v\r\n---\r\n",
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_metadata_is_left_out(metadata: str, mark: str) -> None:
    assert text_of(f"{mark}{metadata}Text.\n\n---\n\nMore.") == "Text.\n\nMore."


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        (
            "---\n\nThe ferry leaves at nine.\n\n---\n\nDogs travel free.",
            "The ferry leaves at nine.\n\nDogs travel free.",
        ),
        ("---\n- a\n- b\n---\nText.", "- a\n\n- b\n\nText."),
        ("---\nkey: [never\n---\nText.", "key: [never\n\nText."),
        ("---\nNo end of it.\n\nText.", "No end of it.\n\nText."),
        ("+++\nno toml\n+++\nText.", "+++ no toml +++ Text."),
        ("Title\n---\n\nText: x\n\n---\n", "Title\n\nText: x"),
        ("***\n\nText.\n\n***\n", "Text."),
    ],
)
def test_text_between_rules_is_text(markdown: str, expected: str) -> None:
    assert text_of(markdown) == expected


# Encodings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_markdown_of_every_encoding(encoding: str, newline: str) -> None:
    markdown = "---\nk: v\n---\n# Café\n\nIt costs 5 €, “quoted”.\n".replace("\n", newline)
    assert parse_markdown(markdown.encode(encoding)) == [
        Section("Café\n\nIt costs 5 €, “quoted”.", title="Café")
    ]
