"""Chunks: whole sentences, never too long for the embedder, faithful to the text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from stretto.engines.batch.chunking import Chunking, ChunkingConfig, chunk_document, max_tokens
from stretto.engines.batch.embedding import Embedding
from stretto.engines.batch.local_models import MINILM, minilm_path
from stretto.model.errors import ConfigError
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document, Section


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(minilm_path() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def chunks_of(chunking: Chunking, *sections: Section, **config: object) -> list[Chunk]:
    document = Document("a.txt", sections, sha256="abc")
    (chunks,) = chunking.run([Task(1, "q", "step", "chunk", {"files": document}, config)])
    assert isinstance(chunks, list)
    return chunks


def numbered(first: int, after: int) -> str:
    """Sentences of 8 tokens each."""
    return " ".join(f"Sentence {n} is one of many words." for n in range(first, after))


def numbers(chunk: Chunk) -> list[int]:
    return [int(n) for n in re.findall(r"Sentence (\d+)", chunk.text)]


def test_small_document_is_one_chunk(chunking: Chunking) -> None:
    section = Section("One. Two.", title="T", page=3)
    assert chunks_of(chunking, section) == [Chunk("a.txt", 0, "One. Two.", "T", 3, "abc", 1)]


def test_chunks_are_numbered_and_counted(chunking: Chunking) -> None:
    chunks = chunks_of(chunking, Section(numbered(0, 200)))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert {chunk.num_chunks for chunk in chunks} == {len(chunks)}
    assert {chunk.document_sha256 for chunk in chunks} == {"abc"}


def test_next_chunk_begins_with_the_last_whole_sentences(chunking: Chunking) -> None:
    chunks = chunks_of(chunking, Section(numbered(0, 60)), tokens=66, overlap=20)
    assert numbers(chunks[0]) == list(range(8))  # 64 tokens of 8 each, and two special ones
    assert numbers(chunks[1])[:3] == [6, 7, 8]  # 16 of 20


def test_without_overlap_every_sentence_comes_once(chunking: Chunking) -> None:
    chunks = chunks_of(chunking, Section(numbered(0, 60)), tokens=66, overlap=0)
    assert [n for chunk in chunks for n in numbers(chunk)] == list(range(60))


def test_overlap_gives_way_to_a_long_sentence(chunking: Chunking) -> None:
    long = "Word " + "word " * 55 + "end."
    chunks = chunks_of(chunking, Section(f"{numbered(0, 8)} {long}"), tokens=66, overlap=20)
    assert numbers(chunks[0]) == list(range(8))
    assert chunks[1].text == long


def test_sentences_run_across_pages(chunking: Chunking) -> None:
    pages = [Section(f"{numbered(0, 5)} This one", page=1), Section(f"goes on. {numbered(5, 60)}", page=2)]
    chunks = chunks_of(chunking, *pages)
    assert "This one\ngoes on." in chunks[0].text
    assert [chunk.page for chunk in chunks] == [1, 2, 2]
    (mark,) = chunks[0].marks
    assert (mark.page, chunks[0].text[mark.start :][:8]) == (2, "goes on.")
    assert chunks[1].marks == chunks[2].marks == ()


def test_heading_begins_a_chunk(chunking: Chunking) -> None:
    parts = [Section(numbered(0, 12), title="A"), Section(numbered(12, 15), title="B")]
    chunks = chunks_of(chunking, *parts)
    assert [(chunk.title, numbers(chunk)) for chunk in chunks] == [
        ("A", list(range(12))),
        ("B", [12, 13, 14]),
    ]


def test_tiny_sections_share_a_chunk(chunking: Chunking) -> None:
    chunks = chunks_of(chunking, *[Section(numbered(n, n + 1), title=f"T{n}") for n in range(16)])
    assert [(chunk.title, numbers(chunk)) for chunk in chunks] == [
        ("T0", list(range(8))),  # a quarter of 254 tokens
        ("T8", list(range(8, 16))),
    ]
    for chunk in chunks:
        found = {mark.title: numbers(chunk)[at] for at, mark in enumerate(chunk.sections())}
        assert found == {f"T{n}": n for n in numbers(chunk)}
        assert all(chunk.text[mark.start :].startswith("Sentence") for mark in chunk.marks)


def test_sections_with_the_same_title_on_different_pages_are_one_text(chunking: Chunking) -> None:
    pages = [Section(numbered(0, 12), "T", page=1), Section(numbered(12, 24), "T", page=2)]
    (chunk,) = chunks_of(chunking, *pages)
    assert (chunk.page, numbers(chunk)) == (1, list(range(24)))
    assert [(mark.page, mark.title) for mark in chunk.sections()] == [(1, "T"), (2, "T")]


@pytest.mark.parametrize(
    "text",
    ["word " * 300, "字" * 300, "a/b-" * 200, "한국어" * 200, "antidisestablishment" * 4 + " " + "x." * 99],
    ids=["words", "no spaces", "punctuation", "hangul", "mixed"],
)
def test_long_sentence_is_cut_between_words(chunking: Chunking, tokenizer: Tokenizer, text: str) -> None:
    chunks = chunks_of(chunking, Section(text), tokens=32, overlap=0)
    assert max(len(tokenizer.encode(chunk.text)) for chunk in chunks) <= 32
    assert "".join(chunk.text for chunk in chunks).replace(" ", "") == text.replace(" ", "")


def test_embedder_never_truncates(chunking: Chunking, embedding: Embedding) -> None:
    sentences = [" ".join(["antibodies"] * n) + "." for n in (100, 1, 300, 2, 254, 253, 40)]
    chunks = chunks_of(chunking, Section(" ".join(sentences)))
    leading = embedding._leading
    assert leading._tokenizer is not None
    assert leading._max_tokens == 256
    for chunk in chunks:
        assert len(leading._tokenizer.encode(chunk.text).ids) <= 256


@pytest.mark.parametrize(
    "config",
    [{"tokens": 8}, {"tokens": 257}, {"tokens": 64, "overlap": 62}, {"overlap": -1}, {"tokens": "many"}],
)
def test_impossible_sizes_are_config_errors(chunking: Chunking, config: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        chunks_of(chunking, Section("text"), **config)


def test_tokens_are_those_of_the_embedder(tmp_path: Path) -> None:
    """Another embedder: a token for each word, 40 tokens at most."""
    known = ["[UNK]", "Antidisestablishmentarianism", "number", *(f"{n}." for n in range(30))]
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(known)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    engine = Chunking(ChunkingConfig(str(tmp_path)))
    text = " ".join(f"Antidisestablishmentarianism number {n}." for n in range(30))
    first = chunks_of(engine, Section(text), tokens=40, overlap=0)[0]
    assert len(first.text.split()) == 36  # 12 sentences of 3; 13 are more than 38
    with pytest.raises(ConfigError, match="16 to 40"):
        chunks_of(engine, Section(text), tokens=41)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sentence_bert_config.json": {"max_seq_length": 128}, "config.json": {}}, 128),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": None},
                "tokenizer_config.json": {"model_max_length": 64},
            },
            64,
        ),
        (
            {
                "tokenizer_config.json": {"model_max_length": 10**30},
                "config.json": {"max_position_embeddings": 512},
            },
            512,
        ),
        ({"config.json": {}}, None),
        ({"config.json": []}, None),
    ],
)
def test_the_limit_of_an_embedder_is_read_from_its_files(
    tmp_path: Path, files: dict[str, object], expected: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    if expected is None:
        with pytest.raises(ConfigError, match=str(tmp_path)):
            max_tokens(str(tmp_path))
    else:
        assert max_tokens(str(tmp_path)) == expected


def test_the_packaged_embedder_reads_256_tokens() -> None:
    assert max_tokens(MINILM) == 256


@pytest.mark.parametrize("text", [None, "no JSON"])
def test_a_model_without_a_tokenizer_is_a_config_error(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Chunking(ChunkingConfig(str(tmp_path)))


fragments = [
    "One sentence.",
    "No.",
    "e.g. this",
    "naïve ﬁnding",
    "字字字。",
    "\n\n",
    "\n- item",
    "\x0c",
    "x" * 120,
]
texts = st.lists(st.sampled_from(fragments) | st.text(max_size=12), max_size=30).map(" ".join)
sections = st.builds(
    Section, texts, title=st.none() | st.sampled_from("AB"), page=st.none() | st.integers(1, 3)
)
documents = st.lists(sections, max_size=5).map(lambda parts: Document("a.txt", tuple(parts), "abc"))


def squeezed(text: str) -> str:
    return re.sub(r"[ \t\r\n]+", "", text)


@settings(max_examples=30, deadline=None)
@given(documents, st.integers(14, 60))
def test_chunks_hold_all_the_text_in_order_and_fit(
    tokenizer: Tokenizer, document: Document, budget: int
) -> None:
    chunks = chunk_document(document, tokenizer, budget, overlap_tokens=0)
    assert all(len(tokenizer.encode(chunk.text, add_special_tokens=False)) <= budget for chunk in chunks)
    text = "".join(section.text for section in document.sections)
    assert squeezed("".join(chunk.text for chunk in chunks)) == squeezed(text)
    assert chunks == chunk_document(document, tokenizer, budget, overlap_tokens=0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=5), st.integers(16, 254), st.integers(0, 250))
def test_overlapping_chunks_are_runs_of_sentences(
    tokenizer: Tokenizer, lengths: list[int], budget: int, overlap: int
) -> None:
    overlap = min(overlap, budget - 1)
    borders = [0, *accumulate(lengths)]
    parts = tuple(Section(numbered(a, b), title=str(a)) for a, b in pairwise(borders))
    chunks = chunk_document(Document("a.txt", parts, "abc"), tokenizer, budget, overlap)
    after = 0
    for chunk in chunks:
        found = numbers(chunk)
        first, last = found[0], found[-1]
        assert found == list(range(first, last + 1))
        assert 8 * len(found) <= budget
        assert 0 <= 8 * (after - first) <= overlap
        assert last >= after
        after = last + 1
    assert after == borders[-1]


def test_each_sentence_is_tokenised_once_and_in_batches_of_bounded_length(tokenizer: Tokenizer) -> None:
    calls: list[list[str]] = []

    class Counting:
        model = tokenizer.model
        token_to_id = tokenizer.token_to_id

        def encode_batch(self, batch: list[str], add_special_tokens: bool) -> object:
            calls.append(batch)
            return tokenizer.encode_batch(batch, add_special_tokens=add_special_tokens)

    sections = Section(numbered(0, 5000)), Section(numbered(5000, 9999)), Section("x," * 50_000)
    chunk_document(Document("a.txt", sections, "abc"), Counting(), 64, 16)  # type: ignore[arg-type]
    sentences = [text for batch in calls for text in batch if "Sentence" in text]
    assert len(sentences) == len(set(sentences)) == 9999
    assert max(sum(map(len, batch)) for batch in calls) < 100_000


@pytest.mark.parametrize(
    "text",
    [
        "The pier. " + "iVBORw0KGgo" * 5000 + " The end.",
        "x" * 100_000,
        "an " + "ä" * 150 + " and " + "qqqq" * 60 + " then",
        "word" + " " * 100_000 + "word. " + "c" * 20_000 + "\n" * 20_000 + "d. " + "\n\n" * 5000 + "e",
        "a" + "\u200b" * 50_000 + "b",
        "\U00012000" * 20_000,
        "\n".join(f"{n},{n * 7},abc" for n in range(5000)),
        "https://example.org/" + "a-b/" * 9000,
        "e" + "\u0301" * 50_000,
    ],
    ids=["base64", "letters", "unknown", "blanks", "dropped", "script", "table", "link", "accents"],
)
def test_no_chunk_is_long_whatever_the_tokenizer_makes_of_it(
    chunking: Chunking, tokenizer: Tokenizer, text: str
) -> None:
    chunks = chunks_of(chunking, Section(text), overlap=0)
    assert squeezed("".join(chunk.text for chunk in chunks)) == squeezed(text)
    assert all(chunk.text.strip() for chunk in chunks)
    assert max(len(tokenizer.encode(chunk.text)) for chunk in chunks) <= 256
    assert max(len(chunk.text) for chunk in chunks) <= 254 * 16


def test_an_unknown_word_counts_as_its_letters(chunking: Chunking, tokenizer: Tokenizer) -> None:
    word = "qz" * 60
    assert len(tokenizer.encode(word, add_special_tokens=False)) == 1
    chunks = chunks_of(chunking, Section(". ".join([word] * 20)), overlap=0)
    assert {chunk.text.count("z") // 60 for chunk in chunks} == {2}


_MEMORY = """
import resource, sys
from stretto.model.values import Document, Section
from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.model.tasks import Task
engine = Chunking(ChunkingConfig())

def run(text):
    document = Document("a", (Section(text),), "")
    return engine.run([Task(1, "q", "s", "chunk", {"files": document}, {})])[0]

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

run("Some words to begin with. " * 1000)
text = sys.argv[1] + "".join(f"Sentence {n} has many words, most of them short. " for n in range(40_000))
before = peak_bytes()
chunks = run(text)
print((peak_bytes() - before) / len(text), len(chunks))
"""


def test_chunking_takes_little_memory() -> None:
    """A process that chunks 2 MB needs less than 20 bytes for each of its characters, which take two each."""
    share, num_chunks = subprocess.check_output([sys.executable, "-c", _MEMORY, "\u20ac"], text=True).split()
    assert int(num_chunks) > 1500
    assert float(share) < 20
