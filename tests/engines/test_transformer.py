"""The in-process engine against `transformers`, and what it does with bad input."""

from __future__ import annotations

import json
import math
import pickle
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.llm_running import drain, run, task
from transformers import AutoModelForCausalLM

from checks.llm_equality import (
    FAMILIES,
    build_family,
    compare,
    generate,
    random_config,
    random_prompts,
)
from stretto.cluster.kv_events import BlockRemoved, BlockStored
from stretto.engines.transformer.config import read_config
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.engines.transformer.running_task import TransformerUsage
from stretto.model.errors import CapacityError, ConfigError, UserError
from stretto.model.tasks import Decode, Done, Failed, LLMTask, Piece
from stretto.model.values import Segment

pytest_plugins = ("support.llm_fixtures",)


def engine(folder: Path, **settings: object) -> TransformerLLM:
    return TransformerLLM(TransformerConfig(folder, **settings))  # type: ignore[arg-type]


def tokens_of(llm: TransformerLLM, prompt: list[int], decode: Decode) -> tuple[int, ...]:
    llm.admit_tokens(LLMTask(1, "q", "", (), decode), prompt, ())
    done = drain(llm)[-1]
    assert isinstance(done, Done), done
    assert isinstance(done.usage, TransformerUsage)
    return done.usage.tokens


def test_a_cancelled_prefill_leaves_its_full_blocks_in_the_cache(tiny_checkpoint: Path) -> None:
    llm = engine(tiny_checkpoint, block_tokens=16, max_batch_tokens=40)
    prompt = [5 + i % 200 for i in range(200)]
    llm.admit_tokens(LLMTask(1, "q", "ahead", (), None), prompt, (0.0,))
    llm.step()
    llm.step()
    llm.cancel(1)
    llm.scheduler.check_invariants()
    llm.admit_tokens(LLMTask(2, "q", "reader", (), Decode(4, ignore_eos=True)), prompt, (0.0,))
    done = drain(llm)[-1]
    assert isinstance(done, Done)
    assert done.usage.num_cached_tokens == 80, "two steps of 40 tokens"
    assert isinstance(done.usage, TransformerUsage)
    assert done.usage.tokens == tokens_of(engine(tiny_checkpoint), prompt, Decode(4, ignore_eos=True))


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_family(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_greedy_tokens_equal_those_of_transformers(family: Path, seed: int) -> None:
    """Random engines, short of memory, with forks and cancelled tasks; invariants hold after every step."""
    rng = random.Random(seed)
    prompts = random_prompts(rng, 16, 600)
    config = random_config(rng, family, 612)
    generated, _ = generate(config, prompts, 12, rng, lambda llm: llm.scheduler.check_invariants())
    model = AutoModelForCausalLM.from_pretrained(family, dtype=torch.float32).eval()
    outcome = compare(model, prompts, generated)
    assert outcome.wrong == ()
    assert outcome.num_near_ties <= 2


def test_generate_of_transformers_says_the_same(family: Path) -> None:
    """Once by its own loop as well, not only by reading along."""
    prompt = random_prompts(random.Random(5), 1, 300)[0]
    model = AutoModelForCausalLM.from_pretrained(family, dtype=torch.float32)
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    decode = Decode(max_tokens=8, ignore_eos=True)
    assert tokens_of(engine(family), prompt, decode) == tuple(output[0, len(prompt) :].tolist())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_and_stays_near(family: Path, dtype: str) -> None:
    """The first token is among the likeliest few of float32."""
    prompt = random_prompts(random.Random(7), 1, 100)[0]
    decode = Decode(max_tokens=1, ignore_eos=True, logprobs=20)
    exact = engine(family)
    exact.admit_tokens(LLMTask(1, "q", "", (), decode), prompt, ())
    done = drain(exact)[-1]
    assert isinstance(done, Done)
    assert isinstance(done.usage, TransformerUsage)
    likely = [token for token, _ in done.usage.logprobs[0].top]
    assert tokens_of(engine(family, dtype=dtype), prompt, decode)[0] in likely


def test_preempted_sequences_generate_what_they_would_have(tiny_checkpoint: Path) -> None:
    """Eight of 80 tokens in room for three: all come to their end, and say the same as with room for all."""
    prompts = random_prompts(random.Random(2), 8, 20)
    decode = Decode(max_tokens=60, temperature=0.8, frequency_penalty=0.5, ignore_eos=True)
    outputs, num_preemptions = [], []
    for num_tokens in (10_000, 240):
        llm = engine(tiny_checkpoint, block_tokens=8, kv_bytes=num_tokens * 3 * 2 * 2 * 16 * 4)
        for number, prompt in enumerate(prompts):
            llm.admit_tokens(LLMTask(number, "q", "", (), decode), prompt, ())
        outputs.append({e.task: e.value for e in drain(llm) if isinstance(e, Done)})
        num_preemptions.append(llm.scheduler.num_preemptions)
    assert num_preemptions[0] == 0 < num_preemptions[1]
    assert outputs[0] == outputs[1]


def test_shared_prefix_and_plain_attention_generate_the_same(tiny_checkpoint: Path) -> None:
    rng = random.Random(1)
    prefix = rng.choices(range(3, 250), k=400)
    outputs = []
    for shares in (True, False):
        llm = engine(tiny_checkpoint, shares_attention=shares)
        llm.admit_tokens(LLMTask(99, "q", "", (), None), prefix, ())
        drain(llm)
        for number in range(8):
            decode = Decode(max_tokens=10, ignore_eos=True)
            llm.admit_tokens(LLMTask(number, "q", "", (), decode), [*prefix, number + 5], ())
        outputs.append({e.task: e.value for e in drain(llm) if isinstance(e, Done)})
    assert outputs[0] == outputs[1]


def test_sharded_weights_load_like_one_file(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "sharded")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    where = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(names)}
    for part in sorted(set(where.values())):
        save_file({name: tensors[name] for name in names if where[name] == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    decode = Decode(max_tokens=5)
    assert tokens_of(engine(folder), [5, 6, 7], decode) == tokens_of(
        engine(tiny_checkpoint), [5, 6, 7], decode
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' is not supported"),
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'yarn' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"num_key_value_heads": 3}, "evenly"),
        ({"num_hidden_layers": 4}, r"lack model\.layers\.3"),
        ({"intermediate_size": 7}, "expected"),
        ({"hidden_size": "many"}, "wrong kind"),
        ({"rms_norm_eps": None}, "wrong kind"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a positive number, got nan"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be from 1 to .*, got 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be from 1 to .*, got 1000000000"),
        ({"max_position_embeddings": -1}, "max_position_embeddings must be from 1 to .*, got -1"),
        (
            {"max_position_embeddings": 10**12},
            "max_position_embeddings must be .*, got 1000000000000",
        ),
        ({"rope_parameters": "none"}, "wrong kind"),
        ({"rope_parameters": {"rope_theta": -5.0}}, "rope_theta must be a positive number, got -5"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "lacks 'low_freq_factor'"),
        ({"model_type": "mistral", "sliding_window": -3}, "sliding_window must be from 1 to .*, got -3"),
    ],
)
def test_unusable_checkpoint_says_what_is_wrong(
    tiny_checkpoint: Path, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "broken")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(ConfigError, match=message):
        engine(folder)


def test_missing_value_is_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "partial")
    config = json.loads((folder / "config.json").read_text())
    del config["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="lacks 'vocab_size'"):
        read_config(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"\x00\xff garbage"])
def test_missing_or_corrupt_file_is_a_config_error(
    tiny_checkpoint: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "broken")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match="broken"):
        engine(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", "half"),
        ("model.safetensors.index.json", "[]"),
        ("model.safetensors.index.json", "{}"),
        ("model.safetensors.index.json", '{"weight_map": 5}'),
        ("model.safetensors.index.json", '{"weight_map": {"model.norm.weight": 5}}'),
        ("model.safetensors.index.json", '{"weight_map": {"model.norm.weight": "../model.safetensors"}}'),
        ("model.safetensors.index.json", '{"weight_map": {"model.norm.weight": "nowhere"}}'),
        ("tokenizer.json", "half"),
        ("tokenizer_config.json", "{"),
        ("generation_config.json", "[]"),
        ("generation_config.json", '{"eos_token_id": {"one": 1}}'),
        ("config.json", "null"),
    ],
)
def test_files_that_are_half_right_are_a_config_error(
    tiny_checkpoint: Path, tmp_path: Path, name: str, content: str
) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "broken")
    whole = (folder / name).read_bytes() if content == "half" else b""
    (folder / name).write_bytes(whole[: len(whole) // 2] if content == "half" else content.encode())
    with pytest.raises(ConfigError, match="broken"):
        engine(folder)


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "float8"},
        {"device": "abacus"},
        {"kv_bytes": 10},
        {"kv_bytes": 10**15},
        {"kv_bytes": 1e6},
        {"policy": "magic"},
        {"max_running": 0},
        {"block_tokens": 0},
        {"level_s": 0},
        {"num_threads": 0},
    ],
)
def test_unusable_setting_is_a_config_error(tiny_checkpoint: Path, changed: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        engine(tiny_checkpoint, **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"top_k": 2.5},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 3.0},
        {"frequency_penalty": "much"},
        {"min_tokens": 99},
        {"logprobs": 1000},
        {"stop_tokens": (10**6,)},
        {"stop_tokens": None},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"max_items": 0, "items": "json_list"},
        {"stop": ("",)},
        {"stop": (5,)},
        {"stop": "end"},
        {"seed": None},
        {"temperature": None},
        {"logprobs": 1.0},
        {"regex": 5},
        {"ignore_eos": "yes"},
    ],
)
def test_senseless_sampling_fails_alone_and_is_named(
    tiny_checkpoint: Path, changed: dict[str, object]
) -> None:
    llm = engine(tiny_checkpoint)
    ending = run(llm, (Segment("river"),), Decode(**{"max_tokens": 8, **changed}))  # type: ignore[arg-type]
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, ConfigError)
    assert next(iter(changed)) in str(ending.error)
    assert isinstance(run(llm, (Segment("river"),), Decode(max_tokens=2)), Done)


def test_prompt_beyond_context_or_memory_fails_with_numbers(tiny_checkpoint: Path) -> None:
    beyond = run(engine(tiny_checkpoint), (Segment("river " * 3000),), Decode(max_tokens=10))
    assert isinstance(beyond, Failed)
    assert isinstance(beyond.error, CapacityError)
    assert "2048" in str(beyond.error)
    small = engine(tiny_checkpoint, kv_bytes=3 * 2 * 2 * 16 * 4 * 64)
    ending = run(small, (Segment("river " * 60),), Decode(max_tokens=10))
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, CapacityError)
    assert "the engine has 2" in str(ending.error)
    assert isinstance(run(small, (Segment("river"),), Decode(max_tokens=10)), Done)


def test_an_answer_is_fitted_into_the_context_where_that_is_asked_for(tiny_checkpoint: Path) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint))
    context = llm.runner.config.context_tokens
    fitted = Decode(max_tokens=2 * context, fits_context=True, ignore_eos=True)
    ended = run(llm, (Segment("a b c"),), fitted)
    assert isinstance(ended, Done)
    assert ended.usage.num_prompt_tokens + ended.usage.num_output_tokens == context
    assert ended.finish == "length"
    small = TransformerLLM(TransformerConfig(tiny_checkpoint, kv_bytes=2**16))
    room = small.runner.num_blocks * 32
    assert room < context
    ended = run(small, (Segment("a b c"),), fitted)
    assert isinstance(ended, Done), ended
    assert ended.usage.num_prompt_tokens + ended.usage.num_output_tokens == room
    failed = run(llm, (Segment("a " * 2 * context),), fitted)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, CapacityError)


@pytest.mark.parametrize("segment", [Segment("half \ud800 a pair"), Segment("half \ud800 a pair", "context")])
def test_text_that_is_none_fails_alone(tiny_checkpoint: Path, segment: Segment) -> None:
    llm = engine(tiny_checkpoint)
    ending = run(llm, (Segment("river"), segment), Decode(max_tokens=2))
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, UserError)
    assert r"half \ud800 a pair" in str(ending.error)
    assert isinstance(run(llm, (Segment("river"),), Decode(max_tokens=2)), Done)


def test_tokens_beyond_the_vocabulary_are_refused(tiny_checkpoint: Path) -> None:
    with pytest.raises(UserError, match="outside the vocabulary"):
        engine(tiny_checkpoint).admit_tokens(LLMTask(1, "q", "", (), None), [10**6], ())


def test_every_block_is_back_after_cancelling_everything(tiny_checkpoint: Path) -> None:
    llm = engine(tiny_checkpoint, max_running=4)
    for number in range(8):
        llm.admit(task(number, (Segment("river " * (number + 1) * 9),), Decode(max_tokens=50)), ())
    for number in range(8):
        llm.step()
        llm.cancel(number)
        llm.scheduler.check_invariants()
    assert not llm.has_work()
    llm.release("q")
    assert llm.scheduler.pool.num_free == llm.scheduler.pool.num_blocks


def test_released_prefix_stays_if_told_to(tiny_checkpoint: Path) -> None:
    llm = engine(tiny_checkpoint, keeps_released=True)
    first, second = (run(llm, (Segment("the river " * 30),), Decode(max_tokens=2), f"q{n}") for n in range(2))
    llm.release("q0")
    assert isinstance(first, Done)
    assert isinstance(second, Done)
    assert second.usage.num_cached_tokens == second.usage.num_prompt_tokens - 1


def test_tenants_hold_no_block_together(tiny_checkpoint: Path) -> None:
    """Four equal prompts at once, of two tenants: the blocks of one are none of the other's."""
    llm = engine(tiny_checkpoint, with_kv_events=True)
    for number, tenant in enumerate(["a", "b", "a", "b"]):
        prompt = (Segment(" ".join(map(str, range(100)))),)
        llm.admit(LLMTask(number, tenant, "", prompt, Decode(max_tokens=8, ignore_eos=True), tenant), ())
    while len(llm.scheduler.running) < 4:
        llm.step()
    blocks: dict[str, set[int]] = {"a": set(), "b": set()}
    for sequence in llm.scheduler.running:
        blocks[sequence.salt].update(sequence.blocks)
    assert len(llm.scheduler.running[0].blocks) < len(blocks["a"]) < 2 * len(llm.scheduler.running[0].blocks)
    assert not blocks["a"] & blocks["b"]
    stored = [event for event in llm.take_kv_events() if isinstance(event, BlockStored)]
    assert len({event.hash for event in stored}) == len(stored) == 2 * len({e.tokens for e in stored})


def test_configuration_crosses_process_borders(tiny_checkpoint: Path) -> None:
    config = TransformerConfig(tiny_checkpoint, max_running=3)
    assert pickle.loads(pickle.dumps(config)) == config


def test_logprobs_and_tokens_are_reported(tiny_checkpoint: Path) -> None:
    llm = engine(tiny_checkpoint)
    llm.admit_tokens(LLMTask(1, "q", "", (), Decode(max_tokens=4, logprobs=2, ignore_eos=True)), [5, 6, 7])
    done = drain(llm)[-1]
    assert isinstance(done, Done)
    assert isinstance(done.usage, TransformerUsage)
    assert [one.token for one in done.usage.logprobs] == list(done.usage.tokens)
    assert all(one.top[0] == (one.token, one.logprob) for one in done.usage.logprobs)


def test_stop_token_ends_the_output_and_is_not_part_of_it(tiny_checkpoint: Path) -> None:
    llm = engine(tiny_checkpoint)
    tokens = tokens_of(llm, [5, 6, 7], Decode(max_tokens=12, ignore_eos=True))
    stopped = Decode(max_tokens=12, ignore_eos=True, stop_tokens=(tokens[4],))
    count = tokens.index(tokens[4]) + 1
    assert tokens_of(llm, [5, 6, 7], stopped) == tokens[:count]
    llm.admit_tokens(LLMTask(1, "q", "", (), stopped), [5, 6, 7], ())
    done = drain(llm)[-1]
    assert isinstance(done, Done)
    text = llm.tokenizer.decode(list(tokens[: count - 1]))
    assert done.value == text.rstrip("\ufffd").strip()  # half a character at the end is left out


def test_kv_events_tell_of_the_prompt(tiny_checkpoint: Path) -> None:
    llm = engine(tiny_checkpoint, with_kv_events=True, block_tokens=4)
    llm.admit_tokens(LLMTask(1, "q", "", (), None), [5, 6, 7, 8, 9], ())
    drain(llm)
    (stored,) = llm.take_kv_events()
    assert isinstance(stored, BlockStored)
    assert stored.tokens == (5, 6, 7, 8)
    llm.release("q")
    assert llm.take_kv_events() == [BlockRemoved(stored.hash)]


def test_two_live_tasks_of_one_id_are_a_callers_bug(tiny_checkpoint: Path) -> None:
    llm = engine(tiny_checkpoint)
    llm.admit(task(1, (Segment("x"),), Decode(max_tokens=2)), ())
    with pytest.raises(AssertionError, match="task 1 is still running"):
        llm.admit(task(1, (Segment("y"),), Decode(max_tokens=2)), ())
    assert isinstance(drain(llm)[-1], Done)
    llm.admit(task(1, (Segment("y"),), Decode(max_tokens=2)), ())
    assert isinstance(drain(llm)[-1], Done)


@pytest.mark.parametrize("silence_s", [0.0, 60.0, math.inf])
def test_text_that_nobody_reads_before_its_end_is_told_in_few_pieces(
    tiny_checkpoint: Path, silence_s: float
) -> None:
    llm = engine(tiny_checkpoint)
    decode = Decode(100, ignore_eos=True, strip=False)
    llm.admit_tokens(LLMTask(1, "q", "", (), decode, silence_s=silence_s), [5, 6, 7], ())
    events = drain(llm)
    pieces = [event.value for event in events if isinstance(event, Piece)]
    done = events[-1]
    assert isinstance(done, Done)
    assert "".join(pieces) == done.value
    assert len(pieces) <= 5 if silence_s == math.inf else len(pieces) > 50
    assert isinstance(events[1], Piece), "the first token is told at once"
