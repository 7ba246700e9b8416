"""The transform xml, which reads elements and texts, and refuses declarations of entities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.parsers import expat

from stretto.model.errors import ConfigError, StrettoError
from stretto.transforms.refusals import MAX_DEPTH, text_of, too_deep, unreadable


def xml(tag: object) -> Callable[[object], object]:
    """Return the transform `xml "answer"`: the text within the first element of that name. Without a name the
    value is that of the whole document: {name: text}, or {name: [elements]}.

    Text before the first "<" and after the last ">" is passed over.

    Raises:
        ConfigError: the name is no text.
    """
    if tag is not None and (not isinstance(tag, str) or not tag):
        raise ConfigError(f"xml needs the name of an element, got {tag!r:.80}")

    def read(value: object) -> object:
        text = text_of(value)
        if tag is None:
            return _document(text[text.find("<") if "<" in text else len(text) : text.rfind(">") + 1])
        start = text.find(f"<{tag}>")
        end = text.find(f"</{tag}>", start)
        if start < 0 or end < 0:
            raise unreadable(f"element {tag!r}", text)
        inner = _document(text[start : end + len(tag) + 3])
        return _text(inner).strip()

    return read


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(map(_text, value.values()))
    return "\n".join(map(_text, value)) if isinstance(value, list) else str(value)


def _document(text: str) -> Any:
    """Return {name: text} or {name: [elements]} of the outermost element."""
    root: list[Any] = []
    stack: list[tuple[str, list[Any], list[str]]] = []

    def refuse(*_: object) -> None:
        raise unreadable("plain XML", text, "it declares a document type")

    def start(name: str, _: object) -> None:
        if len(stack) >= MAX_DEPTH:
            raise too_deep()
        stack.append((name, [], []))

    def end(_: str) -> None:
        name, children, texts = stack.pop()
        element = {name: children or "".join(texts).strip()}
        (stack[-1][1] if stack else root).append(element)

    def take(data: str) -> None:
        if stack:
            stack[-1][2].append(data)

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = take
    try:
        parser.Parse(text, True)
    except StrettoError:
        raise
    except (expat.ExpatError, ValueError) as error:
        raise unreadable("XML", text, str(error)) from error
    return root[0]
