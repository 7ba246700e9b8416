"""Speed of the in-process LLM engine with a small model, next to others on the same checkpoint.

The model has 8.5 million random bfloat16 weights. All engines get the same random prompts in one run, in
turn, with the others idle. Besides throughput, the benchmark measures the first token of a prompt that is
mostly cached, decode steps of sequences that share a long prefix, and the time of a step without the model.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.common.vllm_server import NOT_INSTALLED, VLLM, find_vllm, serving
from benchmarks.llm.contestants import Caching, Contestant, Stretto, TransformersGenerate, VLLMServer
from benchmarks.llm.model import NEW_TOKENS, PROMPT_TOKENS, THREADS, build_model, random_prompts
from benchmarks.llm.steps import LOOP, SHARING, loop_rows, sharing_rows
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, spread, versions
from stretto.model.errors import EngineFailure

THROUGHPUT = "tokens/s by concurrency"
FIRST_TOKEN = "time to first token, 512 tokens"

CONCURRENCY = (1, 4, 16)
FIRST_TOKENS, CACHED_TOKENS = 512, 448
EAGER, COMPILED = "vLLM CPU server, eager", "vLLM CPU server, compiled"

# The same model and lengths on two cores on another day: the best results.
VLLM_EAGER = {1: 254.0, 4: 856.0, 16: 2055.0}
VLLM_COMPILED = {1: 212.0, 4: 1002.0, 16: 2964.0}


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark in some minutes, or under two if `quick`, without the start of vLLM's server.

    vLLM runs eagerly; unless `quick`, a second server compiles the model.

    Raises:
        ConfigError: `options.vllm` has no vLLM.
    """
    import torch

    vllm = find_vllm(options.vllm)
    rounds = 3 if options.quick else 10
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        checkpoint = build_model(Path(name), options.seed)
        with (
            _vllm_servers(vllm, checkpoint, options, notes) as servers,
            closing(Stretto(checkpoint)) as stretto,
        ):
            rows = throughput_rows([TransformersGenerate(checkpoint), *servers, stretto], rounds, options)
            options.say("time to first token")
            rows += first_token_rows([*servers, stretto], 3 * rounds, options.seed)
        options.say("shared prefix")
        rows += sharing_rows(checkpoint, rounds, options.seed)
        options.say("the loop")
        rows += loop_rows(checkpoint, options.seed)
    config = {"rounds": rounds, "prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS, "threads": THREADS}
    notes += [
        "transformers and stretto run in the process that measures; vLLM's time includes its HTTP server, one"
        " request a prompt, answers not streamed; no prompt but the cached ones begins like another",
        "vLLM compiled, as seen on another day: " + " / ".join(f"{n:.0f}" for n in VLLM_COMPILED.values()),
    ]
    return Report(
        "llm",
        options.seed,
        config,
        tuple(rows),
        goals_of(rows),
        tuple(notes),
        versions={**versions(), **({"vllm": vllm.version} if vllm else {})},
    )


@contextmanager
def _vllm_servers(
    vllm: VLLM | None, checkpoint: Path, options: BenchmarkOptions, notes: list[str]
) -> Iterator[list[VLLMServer]]:
    """Context with the vLLM servers that could be started; `notes` gets what is missing."""
    if vllm is None:
        notes.append(NOT_INSTALLED)
        yield []
        return
    with ExitStack() as stack:
        servers = []
        for name in (EAGER,) if options.quick else (EAGER, COMPILED):
            server = serving(
                vllm,
                checkpoint,
                dtype="bfloat16",
                num_threads=THREADS,
                say=options.say,
                is_compiled=name == COMPILED,
            )
            try:
                url = stack.enter_context(server)
            except EngineFailure as error:
                notes.append(f"{name} is left out: {error}")
            else:
                servers.append(stack.enter_context(VLLMServer.at(url, name)))
        yield servers


def throughput_rows(contestants: Sequence[Contestant], rounds: int, options: BenchmarkOptions) -> list[Row]:
    """Measure throughput: all engines complete the same prompts, in turn; the first round warms up."""
    tokens_per_s: dict[tuple[int, str], list[float]] = {}
    rng = random.Random(options.seed)
    for number in range(rounds + 1):
        options.say(f"throughput, round {number} of {rounds}")
        for concurrency in CONCURRENCY:
            prompts = random_prompts(rng, concurrency, PROMPT_TOKENS)
            for one in contestants:
                start_s = time.perf_counter()
                num_tokens = one.generate(prompts)
                if number:
                    rate = num_tokens / (time.perf_counter() - start_s)
                    tokens_per_s.setdefault((concurrency, one.name), []).append(rate)
                time.sleep(one.rest_s)
    return [
        Row(THROUGHPUT, f"{name}, {concurrency} at once", spread(rates, "tokens_per_s"))
        for (concurrency, name), rates in tokens_per_s.items()
    ]


def first_token_rows(contestants: Sequence[Caching], repetitions: int, seed: int) -> list[Row]:
    """Measure the time to the first token of a prompt that is not cached, and of the same prompt mostly
    cached."""
    times_ms: dict[tuple[str, str], list[float]] = {}
    rng = random.Random(seed)
    for number in range(repetitions + 1):
        (prompt,) = random_prompts(rng, 1, FIRST_TOKENS)
        for one in contestants:
            for state, num_cached in (("cold", 0), (f"{CACHED_TOKENS} cached", CACHED_TOKENS)):
                seconds = one.first_token_s(prompt, num_cached)
                if number:
                    times_ms.setdefault((one.name, state), []).append(1000 * seconds)
                time.sleep(one.rest_s)
    return [Row(FIRST_TOKEN, f"{name}, {state}", spread(ms, "ms")) for (name, state), ms in times_ms.items()]


def goals_of(rows: Sequence[Row]) -> tuple[Goal, ...]:
    """Goals; the goal for throughput is what vLLM reached in this run, or else when it was last measured."""
    found = {(row.table, row.name): row.values for row in rows}

    def value(table: str, name: str, column: str) -> float:
        number = found[table, name][column]
        assert isinstance(number, int | float)
        return float(number)

    together, each, copies = (
        value(SHARING, name, "median_ms")
        for name in ("one copy, attended together", "one copy, each attends by itself", "a copy each")
    )
    blocks = [value(SHARING, name, "kv_blocks") for name in ("a copy each", "one copy, attended together")]
    cold, cached = (
        value(FIRST_TOKEN, f"stretto, {state}", "median_ms") for state in ("cold", f"{CACHED_TOKENS} cached")
    )
    throughput = []
    for concurrency in CONCURRENCY:
        eager = f"{EAGER}, {concurrency} at once"
        is_here = (THROUGHPUT, eager) in found
        when = "in this run" if is_here else "on another day"
        throughput.append(
            Goal(
                f"tokens/s, {concurrency} at once; vLLM eager {when}",
                value(THROUGHPUT, f"stretto, {concurrency} at once", "median_tokens_per_s"),
                value(THROUGHPUT, eager, "median_tokens_per_s") if is_here else VLLM_EAGER[concurrency],
                "higher",
            )
        )
    return (
        *throughput,
        Goal("time to first token, 448 of 512 cached over cold", round(cached / cold, 3), 0.333, "lower"),
        Goal("decode step without sharing over with", copies / together, 5, "higher"),
        Goal("decode step, attending one by one over together", each / together, 3, "higher"),
        Goal("sequences in the same KV memory, shared over not", blocks[0] / blocks[1], 10, "higher"),
        Goal(
            "ms per step besides model, sampling, detokenisation",
            value(LOOP, "loop", "median_ms"),
            0.2,
            "lower",
        ),
    )
