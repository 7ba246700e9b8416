"""Output that has to follow a schema or an expression, from a model that knows neither."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.llm_running import drain, run, task
from tokenizers import Tokenizer

from benchmarks.common.mini_model import EOS, MINI
from stretto.engines.transformer import structured
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.token_texts import END, NOTHING, TokenTexts, mark_of
from stretto.model.errors import ConfigError, EngineFailure
from stretto.model.tasks import Decode, Done, Failed, LLMEvent
from stretto.model.values import Segment

pytest.importorskip("llguidance")
pytest_plugins = ("support.llm_fixtures",)

PROMPT = (Segment("Where does the river run?"),)
SCHEMA = {
    "type": "object",
    "properties": {"place": {"enum": ["sea", "mill"]}, "sure": {"type": "boolean"}},
    "required": ["place", "sure"],
    "additionalProperties": False,
}


QUERIES = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 60},
    "minItems": 3,
    "maxItems": 3,
}
MARK = "\N{WORD JOINER}"


@pytest.fixture(scope="module")
def mini() -> TransformerLLM:
    """The small model of the tests: its tokenizer normalises, and has a mark that is not read."""
    return TransformerLLM(TransformerConfig(MINI))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_follows_its_structure(tiny_checkpoint: Path, temperature: float) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint))
    by_schema = run(
        llm, PROMPT, Decode(max_tokens=60, temperature=temperature, json_schema=json.dumps(SCHEMA))
    )
    by_regex = run(llm, PROMPT, Decode(max_tokens=60, temperature=temperature, regex=r"(yes|no), [0-9]{3}"))
    assert isinstance(by_schema, Done)
    assert isinstance(by_regex, Done)
    value = json.loads(str(by_schema.value))
    assert value["place"] in ("sea", "mill")
    assert isinstance(value["sure"], bool)
    assert re.fullmatch(r"(yes|no), [0-9]{3}", str(by_regex.value))


@pytest.mark.parametrize(
    "decode",
    [
        Decode(json_schema="{"),
        Decode(regex="("),
        Decode(regex="a", json_schema="{}"),
        Decode(regex="a", ignore_eos=True),
        Decode(regex="a", min_tokens=2),
    ],
)
def test_unusable_structure_fails_alone(tiny_checkpoint: Path, decode: Decode) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint))
    ending = run(llm, PROMPT, decode)
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, ConfigError)
    assert isinstance(run(llm, PROMPT, Decode(max_tokens=2)), Done)


def expand(question: str) -> tuple[Segment, ...]:
    asked = (
        "Rewrite the question as 3 search queries that use other words. Answer with a JSON list of strings."
    )
    return Segment(f"{asked}\nQuestion: "), Segment(question, "question"), Segment("\nJSON:")


@pytest.mark.parametrize("question", ["Where does the river run?", 'Who said "no"? (And – why?)', ""])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_list_of_texts_holds_no_mark_of_the_tokenizer(
    mini: TransformerLLM, question: str, temperature: float
) -> None:
    """Words behind a quote have the tokens of words behind a space; the mark of the space is not read."""
    decode = Decode(max_tokens=400, temperature=temperature, json_schema=json.dumps(QUERIES))
    ending = run(mini, expand(question), decode)
    assert isinstance(ending, Done), ending
    queries = json.loads(str(ending.value))
    assert len(queries) == 3
    assert all(0 < len(query) <= 60 and MARK not in query for query in queries)


@pytest.mark.parametrize("pieces", [["\u0120sea"], ["s", "e", "a"]])
def test_the_space_before_an_output_is_no_part_of_it(pieces: list[str]) -> None:
    """A text goes on with " sea": "sea" would be of rare tokens."""
    tokenizer = Tokenizer.from_file(str(MINI / "tokenizer.json"))
    tokens = [tokenizer.get_vocab()[piece] for piece in pieces]
    structure = structured.Structures(MINI, tokenizer.get_vocab_size()).make(Decode(regex="sea|mill"))
    assert structure is not None
    for number, token in enumerate(tokens):
        assert structure.allowed(tokens[:number])[token]
    assert structure.allowed(tokens).nonzero().flatten().tolist() == [tokenizer.token_to_id(EOS)]


def run_beside_another(llm: TransformerLLM, decode: Decode) -> tuple[LLMEvent, LLMEvent]:
    """Return the endings of a task and of an unrelated one beside it."""
    llm.admit(task(0, PROMPT, decode), ())
    llm.admit(task(1, PROMPT, Decode(max_tokens=5, ignore_eos=True)), ())
    first, second = (event for event in drain(llm) if isinstance(event, Done | Failed))
    return first, second


def test_a_structure_that_no_token_can_follow_fails_alone(mini: TransformerLLM) -> None:
    """The mark is taken out of every text, so that none can have it."""
    schema = json.dumps({"const": f"a{MARK}b"}, ensure_ascii=False)
    failed, done = run_beside_another(mini, Decode(json_schema=schema))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, EngineFailure)
    assert str(failed.error).startswith("step 'step0': the output's structure cannot be followed: ")
    assert isinstance(done, Done)


def test_a_structure_that_is_too_large_to_be_followed_is_an_error_of_the_user() -> None:
    tokenizer = Tokenizer.from_file(str(MINI / "tokenizer.json"))
    schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(1000)}}
    decode = Decode(json_schema=json.dumps(schema))
    structure = structured.Structures(MINI, tokenizer.get_vocab_size()).make(decode)
    assert structure is not None
    with pytest.raises(ConfigError, match=r"^unusable structure: too large: .*; max is [0-9]+[^\n]*$"):
        structure.allowed([tokenizer.get_vocab()["{"]])


def test_a_panic_of_the_library_fails_alone(mini: TransformerLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library panics when it must force tokens, because our vocabulary cannot tokenise."""
    monkeypatch.setattr(structured, "_OPTIONS", "")
    failed, done = run_beside_another(mini, Decode(json_schema=json.dumps(QUERIES)))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, EngineFailure)
    assert re.match(r"step 'step0': the output's structure .*: panic: .*NotImplemented", str(failed.error))
    assert "\n" not in str(failed.error)
    assert isinstance(done, Done)


def test_texts_of_tokens_are_those_that_are_read() -> None:
    mark = MARK.encode()
    tokens = [
        b"<s>",
        b"[" + mark,
        b"[",
        b" a",
        b"a",
        b" ",
        mark,
        mark[:1],
        mark[1:],
        mark[:2],
        mark[2:],
        b"<e>",
    ]
    texts = TokenTexts(tokens, special=[0], ends=[11], mark=MARK)
    read = [texts.texts[number] for number in texts.elsewhere]
    behind_mark = [texts.texts[number] for number in texts.behind_mark]
    assert read[1:6] == [b"[", b"[", b" a", b"a", b" "]
    assert behind_mark[1:6] == [b"[", b"[", b"a", b"a", b""]
    assert texts.elsewhere[[0, 6, 11]].tolist() == [NOTHING, NOTHING, END]
    assert len(set(texts.texts)) == len(texts.texts)
    assert texts.is_behind_mark(texts.end_behind(b"", 1))
    assert not texts.is_behind_mark(texts.end_behind(mark, 4))


def test_a_mark_cannot_be_spelled_byte_by_byte() -> None:
    mark = MARK.encode()
    texts = TokenTexts([mark[:1], mark[1:], mark[1:2], mark[2:], b"a"], special=[], ends=[], mark=MARK)
    end = texts.end_behind(b"a", 0)
    assert texts.spelling_mark(end) == [1]
    assert texts.spelling_mark(texts.end_behind(end, 2)) == [3]
    assert texts.spelling_mark(texts.end_behind(end, 4)) == []


def test_a_tokenizer_without_a_mark_has_none() -> None:
    steps = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "Fuse"}]
    for decoder in (None, {"type": "ByteLevel"}, {"type": "Sequence", "decoders": steps}):
        assert mark_of(json.dumps({"decoder": decoder})) == ""
    assert mark_of((MINI / "tokenizer.json").read_text("utf-8")) == MARK
    texts = TokenTexts([b" a", b"a"], special=[], ends=[], mark="")
    assert not texts.is_behind_mark(texts.end_behind(b"", 0))
    assert texts.spelling_mark(b"") == []


def test_a_schema_that_is_a_wish_is_followed_or_done_without(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = Decode(max_tokens=60, json_schema=json.dumps(SCHEMA), schema_if_able=True)
    done = run(TransformerLLM(TransformerConfig(tiny_checkpoint)), PROMPT, wish)
    assert isinstance(done, Done)
    assert json.loads(str(done.value))["place"] in ("sea", "mill")

    def unusable(*_: object) -> None:
        raise ConfigError("json_schema and regex need the package llguidance")

    monkeypatch.setattr("stretto.engines.transformer.structured.load_tokenizer", unusable)
    assert isinstance(run(TransformerLLM(TransformerConfig(tiny_checkpoint)), PROMPT, wish), Done)


def test_white_space_between_parts_of_json_has_an_end(mini: TransformerLLM) -> None:
    """The small model writes spaces for ever where a schema lets it."""
    ended = run(mini, PROMPT, Decode(max_tokens=120, json_schema=json.dumps(SCHEMA)))
    assert isinstance(ended, Done)
    assert json.loads(str(ended.value)).keys() == {"place", "sure"}
    assert "  " not in str(ended.value)
    assert "\n" not in str(ended.value)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"type": "integer", "minimum": 5, "maximum": 3}])
def test_a_schema_that_nothing_fits_is_refused_at_once(mini: TransformerLLM, schema: object) -> None:
    ended = run(mini, PROMPT, Decode(max_tokens=8, json_schema=json.dumps(schema)))
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, ConfigError)
