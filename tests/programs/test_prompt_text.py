"""Prompts with placeholders as they are parsed, and what is refused when a function is decorated."""

from __future__ import annotations

from typing import Any

import pytest

from stretto import programs as P
from stretto.graph.graph import Constant
from stretto.model.errors import ConfigError, TemplateError
from stretto.programs.prompt_text import PromptSlot, dedent, parse


def shown(text: str) -> list[str]:
    """The parts of a prompt: constants as they are, places in angle brackets."""
    return [
        f"<{part.kind} {part.name}>"
        if isinstance(part, PromptSlot)
        else (f"{part.role}:" if part.role else "") + part.text
        for part in parse(text, "f")
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a {{input:x}} b {{output:y}}", ["a ", "<input x>", " b ", "<output y>"]),
        ("{{x}}{{ output : y }}", ["<either x>", "<output y>"]),
        ("{like this} {{x}} }}", ["{like this} ", "<either x>", " }}"]),
        ('{"a": {"b": {"c": {{x}}}}}', ['{"a": {"b": {"c": ', "<either x>", "}}}"]),
        ("{{{x}}}", ["{", "<either x>", "}"]),
        ("{{{{x}} {{x}}", ["{{x}} ", "<either x>"]),
        (
            "{{system:}} Be kind.\n{{user:}}\n{{x}} {{assistant:}}{{output:y}}",
            ["system:Be kind.", "user:", "<either x>", "assistant:", "<output y>"],
        ),
        (
            "{{user:}}a {{x}}.  {{assistant:}}Sure: {{output:y}}",
            ["user:a ", "<either x>", ".", "assistant:Sure: ", "<output y>"],
        ),
    ],
)
def test_prompts_are_parsed(text: str, parts: list[str]) -> None:
    assert shown(text) == parts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab\ncd {{1x}}", r"f, line 2, column 4: '{{1x}}' begins no placeholder"),
        ("{{}}", "line 1, column 1"),
        ("{{input:}}", "line 1, column 1"),
        ("{{system:x}}", "line 1, column 1"),
        ("{{x", "line 1, column 1: '{{x' begins no placeholder"),
        (
            "{{x.y}}",
            "begins no placeholder; write {{input:x}}, {{output:x}} or {{x}}, and {{{{ for two",
        ),
        ("hello {{user:}} x", "line 1, column 7: text stands before the first message"),
    ],
)
def test_bad_placeholders_are_refused_with_their_place(text: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        parse(text, "f")
    assert message in str(caught.value)


def test_white_space_within_a_docstring_stays() -> None:
    text = dedent(""" One:
        def f():
        \treturn {
            1}

        two  spaces
        """)
    assert text == "One:\ndef f():\n\treturn {\n    1}\n\ntwo  spaces"
    assert isinstance(parse(text, "f")[0], Constant)


def test_parsing_takes_time_in_proportion_to_the_text() -> None:
    """A pattern that looks back and forth would take hours for this."""
    text = "{{ " * 1 + "[ \t" * 100_000
    with pytest.raises(TemplateError):
        parse(text, "f")
    parse("{ " * 200_000, "f")


def decorated(doc: str | None, *names: str, **settings: Any) -> P.Function:
    """A semantic function with a docstring and inputs."""
    code = f"def f({', '.join(names)}): ..."
    scope: dict[str, Any] = {"P": P}
    exec(code, scope)
    function = scope["f"]
    function.__doc__ = doc
    return P.SemanticFunction(**settings)(function)


@pytest.mark.parametrize(
    ("doc", "names", "message"),
    [
        (None, (), "f: a semantic function needs a docstring"),
        ("{{x}} {{output:y}}", (), "f, line 1, column 1: there is no parameter 'x'; there are none. Write"),
        ("{{input:x}} {{output:y}}", ("z",), "there is no input 'x'; there are z"),
        ("{{x}}", ("x",), "f: the prompt has no output"),
        ("{{output:y}}", ("x",), "f: the prompt does not use the parameter 'x'"),
        ("{{output:y}} {{output:y}}", (), "line 1, column 14: the output 'y' stands there twice"),
        ("{{output:x}} {{x}}", ("x",), "line 1, column 1: the output 'x' is also an input"),
        ("{{input:y}} {{output:y}}", (), "line 1, column 1: there is no input 'y'; there are none"),
        ("{{x}} {{output:kv}}", ("x",), "'kv' is a reserved name"),
        ("{{x}} {{output:y}}", ("*x",), "*x cannot be a place of a prompt"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(doc: str | None, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        decorated(doc, *names)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_token": 1}, "f: generation has no setting 'max_token'; it has max_tokens, fits_context, stop"),
        ({"max_tokens": 0}, "f: max_tokens must be at least 1, got 0"),
        ({"max_tokens": True}, "f: max_tokens must be at least 1, got True"),
        ({"max_tokens": -5}, "at least 1"),
        ({"temperature": -1}, "temperature must be at least 0.0 and at most inf, got -1"),
        ({"temperature": float("nan")}, "temperature must be at least 0.0 and at most inf, got nan"),
        ({"top_p": 0}, "top_p must be above 0.0 and at most 1.0, got 0"),
        ({"stop": [""]}, "stop must be a tuple of non-empty strings"),
        ({"stop": 3}, "stop must be a tuple of non-empty strings, got 3"),
        ({"presence_penalty": 3}, "presence_penalty must be at least -2.0"),
        ({"strip": "no"}, "strip must be True or False"),
        ({"items": "json_list"}, "no setting 'items'"),
    ],
)
def test_bad_settings_are_refused_at_decoration(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decorated("{{output:y}}", **settings)
    assert message in str(caught.value)
    with pytest.raises(ConfigError):
        P.Output(**settings)
