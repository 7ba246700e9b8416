"""HTML pages: which part of a page is read."""

from __future__ import annotations

import pytest

from stretto.documents.html import parse_html


def text_of(html: str | bytes) -> str:
    data = html.encode() if isinstance(html, str) else html
    return "\n\n".join(section.text for section in parse_html(data))


@pytest.mark.parametrize(
    "html",
    [
        "<div>Shop</div><main><p>text</p></main>",
        "<main></main><main><p>text</p></main><p>Shop",
        "<main hidden>old</main><main>text</main>",
        "<main aria-hidden='true'>old</main><main>text</main>",
        "<main style='color: red; DISPLAY : none'>old</main><main>text</main>",
        "<div hidden><main>old</main></div><div><main>text</main></div>",
        "<template><main>old</main></template><main>text</main>",
        "<main> \n <!-- nothing --> </main><div>text</div>",
        "<main><script>x()</script><nav>menu</nav></main><article>text</article>",
        "<noscript><main>Turn it on</main></noscript><p>text",
        "<article>text<template>no</template></article>",
        "<section><p style='visibility:hidden'>no</p>text</section>",
        "<p hidden='until-found'>text",
        "<body><p>text",
    ],
)
def test_the_visible_main_part_is_read_or_the_whole_page(html: str) -> None:
    assert text_of(html) == "text"


def test_all_main_parts_with_text_are_read() -> None:
    assert text_of("<main>one<main>two</main></main>three<main>four</main>") == "one\n\ntwo\n\nfour"


def test_a_hidden_part_takes_only_itself_along() -> None:
    assert text_of("<p>a<p hidden>b<p style='display:none'>c<p style='display:block'>d") == "a"
    assert (
        text_of("<p>a</p><p hidden>b</p><p style='display:none'>c</p><p style='display:block'>d") == "a\n\nd"
    )


def test_tables_and_code_keep_their_form() -> None:
    html = "<table><tr><th>a<th>b<tr><td>1<td>2</table><pre>List&lt;T&gt;\n  x</pre>"
    assert text_of(html) == "| a: 1 | b: 2\n\nList<T>\n  x"


@pytest.mark.parametrize("label", ["iso-8859-1", "latin1", "us-ascii", "ISO-8859-1", "windows-1252"])
def test_pages_that_say_latin_1_have_the_quotes_of_windows(label: str) -> None:
    html = f'<meta charset="{label}"><p>A “quote” – 5 €'.encode("cp1252")
    assert text_of(html) == "A “quote” – 5 €"


@pytest.mark.parametrize("label", ["utf-16", "UTF-16LE", "utf-8", "no-such-encoding"])
def test_a_declaration_that_cannot_be_true_is_not_believed(label: str) -> None:
    assert text_of(f'<meta charset="{label}"><p>Café is open'.encode()) == "Café is open"


def test_a_page_in_utf_16_is_read() -> None:
    assert text_of("<p>Café".encode("utf-16")) == "Café"
