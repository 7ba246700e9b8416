"""Engines by options and from a file: what runs, and what is refused before anything starts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine, serving
from support.openai_stub import Reply

from stretto.engines.executables import PROFILES
from stretto.model.deployment import Deployment
from stretto.model.errors import EngineFailure
from stretto.runtime.runtime import Runtime

pytest_plugins = ("support.llm_fixtures",)

ROOT = Path(__file__).parents[2]
QUESTION = "Where did the captain live?"
LLM = """\
[[engine]]
name = "llm"
contract = "llm"
placement = "round_robin"
"""
STAND_IN = """
[[replica]]
engine = "llm"
executable = "stand-in"
"""
TWO_SERVERS = f"""\
[machine]
devices = ["cuda:0", "cpu:0"]
memory = {{ "cuda:0" = "80 GiB" }}

{LLM}
[[replica]]
engine = "llm"
executable = "server:vllm"
devices = ["cuda:0"]
config = {{ model = "some/model", memory_share = 0.6 }}

[[replica]]
engine = "llm"
executable = "server:vllm"
devices = ["cuda:0"]
config = {{ model = "some/model", memory_share = 0.6 }}
"""
ONE_SHOT = ("--app", "naive", "--set", "synthesis.mode=one_shot")


def says_an_inn(_: Mapping[str, Any]) -> Reply:
    return Reply(("At an inn.",))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Six questions."""
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(f"{QUESTION} ({number})") + "\n" for number in range(6)))
    return path


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> list[Deployment]:
    """Return a list of the engines that a runtime is asked to start from now on; none starts."""
    found: list[Deployment] = []

    async def note(self: Runtime) -> Runtime:
        found.extend(self.deployments.values())
        raise EngineFailure("nothing starts here")

    monkeypatch.setattr(Runtime, "__aenter__", note)
    return found


# --- what runs


def test_unlike_replicas_of_a_file_answer_together(
    stretto: CommandLine, doc: Path, questions: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """A model in this process and a server are one engine."""
    file = tmp_path / "engines.toml"
    with serving(says_an_inn) as url:
        file.write_text(
            f"""{LLM}
[[replica]]
engine = "llm"
executable = "transformer"
config = {{ path = "{tiny_checkpoint}", kv_bytes = 33554432 }}

[[replica]]
engine = "llm"
executable = "openai"
config = {{ url = "{url}" }}
"""
        )
        shape = (*ONE_SHOT, "--set", "synthesis.max_tokens=16")
        ended = stretto("ask", "--questions", questions, "--docs", doc, "--engines", file, "--json", *shape)
    assert ended.code == 0, ended.err
    answers = [json.loads(line)["answer"] for line in ended.out.splitlines()]
    assert len(answers) == 6
    assert 0 < answers.count("At an inn.") < 6


def test_several_llms_are_replicas_of_one_engine(stretto: CommandLine, doc: Path, questions: Path) -> None:
    counts = [0, 0]

    def counting(index: int) -> Any:
        def answer(request: Mapping[str, Any]) -> Reply:
            counts[index] += 1
            return says_an_inn(request)

        return answer

    with serving(counting(0)) as one, serving(counting(1)) as other:
        args = (
            "ask",
            "--questions",
            questions,
            "--docs",
            doc,
            "--llm",
            one,
            "--llm",
            other,
            "--passes",
            "none",
            *ONE_SHOT,
        )
        ended = stretto(*args, "--json")
    assert ended.code == 0, ended.err
    assert sum(counts) == 6
    assert min(counts) > 0


def test_the_file_of_the_page_on_engines_runs(
    stretto: CommandLine, doc: Path, questions: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """The example runs with a server and a checkpoint of the test's, and with a placement that uses both."""
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "engines.md").read_text("utf-8"), re.DOTALL)
    with serving(says_an_inn) as url:
        for shown, used in (
            ("checkpoints/small", tiny_checkpoint),
            ("http://127.0.0.1:8000", url),
            ('placement = "stretto"', 'placement = "least_loaded"'),
        ):
            assert shown in text
            text = text.replace(shown, str(used))
        file = tmp_path / "engines.toml"
        file.write_text(text)
        ended = stretto(
            "ask",
            "--questions",
            questions,
            "--docs",
            doc,
            "--engines",
            file,
            "--json",
            *ONE_SHOT,
            "--set",
            "synthesis.max_tokens=16",
        )
    assert ended.code == 0, ended.err
    answers = [json.loads(line)["answer"] for line in ended.out.splitlines()]
    assert 0 < answers.count("At an inn.") < 6


def test_options_shape_the_llm(
    stretto: CommandLine, doc: Path, tmp_path: Path, deployed: list[Deployment], tiny_checkpoint: Path
) -> None:
    """Options of a directory do not change the server beside it."""
    url = "http://127.0.0.1:9"
    options = ("--device", "auto", "--dtype", "bfloat16", "--replicas", 2, "--runs-in", "process")
    llms = ("--llm", tiny_checkpoint, "--llm", url, "--api", "chat", "--policy", "topology_aware")
    stretto("ask", QUESTION, "--docs", doc, *llms, *options)
    llm = next(deployment for deployment in deployed if deployment.name == "llm")
    one, same, server = llm.replicas
    assert one == same
    assert (one.runs_in, one.config.device, one.config.dtype) == ("process", "auto", "bfloat16")  # type: ignore[attr-defined]
    assert (server.runs_in, server.config.url, server.config.api) == ("loop", url, "chat")  # type: ignore[attr-defined]
    assert (llm.engine.policy, llm.engine.keeps_state) == ("topology_aware", True)
    assert {d.engine.policy for d in deployed if d is not llm} == {"programs_first"}


def test_device_and_dtype_reach_every_model_that_runs_here(
    stretto: CommandLine, doc: Path, deployed: list[Deployment], tiny_checkpoint: Path
) -> None:
    models = ("--llm", tiny_checkpoint, "--reranker", "a/cross-encoder")
    stretto("ask", QUESTION, "--docs", doc, *models, "--device", "auto", "--dtype", "float16")
    configs = {d.name: d.replicas[0].config for d in deployed}
    for name in ("llm", "embedding", "reranking"):
        config: Any = configs[name]
        assert (config.device, config.dtype) == ("auto", "float16"), name


def test_device_and_dtype_reach_the_models_that_a_file_does_not_describe(
    stretto: CommandLine, doc: Path, tmp_path: Path, deployed: list[Deployment]
) -> None:
    file = tmp_path / "engines.toml"
    file.write_text(LLM + STAND_IN)
    stretto("ask", QUESTION, "--docs", doc, "--engines", file, "--device", "auto", "--dtype", "float16")
    embedding: Any = next(d.replicas[0].config for d in deployed if d.name == "embedding")
    assert (embedding.device, embedding.dtype) == ("auto", "float16")


def test_a_core_is_the_llm_s_alone(
    stretto: CommandLine, doc: Path, deployed: list[Deployment], tiny_checkpoint: Path
) -> None:
    claim = ("--llm", tiny_checkpoint, "--device", "cpu:0", "--runs-in", "process")
    stretto("ask", QUESTION, "--docs", doc, *claim)
    replicas = {d.name: d.replicas[0] for d in deployed}
    embedding: Any = replicas["embedding"].config
    assert replicas["llm"].devices == ("cpu:0",)
    assert (embedding.device, embedding.dtype) == ("cpu", "auto")


def test_a_process_computes_on_what_it_claims(
    stretto: CommandLine, doc: Path, tmp_path: Path, deployed: list[Deployment], tiny_checkpoint: Path
) -> None:
    file = tmp_path / "engines.toml"
    file.write_text(
        f"""
[machine]
devices = ["cuda:0", "cuda:1", "cpu:0", "cpu:1"]
{LLM}
[[replica]]
engine = "llm"
executable = "transformer"
runs_in = "process"
devices = ["cuda:1"]
threads = 3
config = {{ path = "{tiny_checkpoint}" }}

[[replica]]
engine = "llm"
executable = "transformer"
runs_in = "process"
devices = ["cpu:0", "cpu:1"]
config = {{ path = "{tiny_checkpoint}" }}
"""
    )
    stretto("ask", QUESTION, "--docs", doc, "--engines", file)
    llm = next(deployment for deployment in deployed if deployment.name == "llm")
    made = [replica.instance_config() for replica in llm.replicas]
    assert [(c.device, c.num_threads) for c in made] == [("cuda", 3), ("cpu", 2)]  # type: ignore[attr-defined]
    assert llm.engine.keeps_state


def test_engines_that_a_file_does_not_name_run_as_usual(
    stretto: CommandLine, doc: Path, tmp_path: Path, deployed: list[Deployment]
) -> None:
    file = tmp_path / "engines.toml"
    file.write_text(
        f"""{LLM}{STAND_IN}
[[engine]]
name = "reranking"
max_batch = 7

[[replica]]
engine = "reranking"
executable = "reranking"
profile = {{ per_unit_s = 1.5 }}
"""
    )
    stretto("ask", QUESTION, "--docs", doc, "--engines", file)
    found = {deployment.name: deployment for deployment in deployed}
    assert list(found) == ["chunking", "embedding", "vectors", "reranking", "llm"]
    assert (found["reranking"].engine.max_batch, found["reranking"].profile.per_unit_s) == (7, 1.5)
    assert found["llm"].replicas[0].label == "StandIn"
    assert found["embedding"].profile in (PROFILES["embedding"], PROFILES["embedding-float32"])


def test_a_file_serves_the_app_that_searches_too(
    stretto: CommandLine, doc: Path, tmp_path: Path, deployed: list[Deployment]
) -> None:
    file = tmp_path / "engines.toml"
    file.write_text(LLM.replace('"llm"\nc', '"llm_small"\nc') + STAND_IN.replace('"llm"', '"llm_small"'))
    stretto("ask", QUESTION, "--docs", doc, "--app", "search", "--engines", file)
    assert [deployment.name for deployment in deployed] == ["llm", "llm_small", "web"]


def test_profiles_and_plans_go_by_the_file(
    stretto: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.engines.profiling._ROUNDS", 1)
    file = tmp_path / "engines.toml"
    file.write_text(
        f"""{LLM}
[[replica]]
engine = "llm"
executable = "openai"
config = {{ url = "http://127.0.0.1:9" }}
{STAND_IN}
[[engine]]
name = "embedding"

[[replica]]
engine = "embedding"
executable = "embedding"
profile = {{ max_efficient_batch = 5 }}
"""
    )
    assert json.loads(stretto("profile", "llm", "--engines", file, "--json").out)["engine"] == "llm"
    assert "(5 at a time)" in stretto("explain", "--engines", file).out
    assert "(5 at a time)" not in stretto("explain").out


# --- what is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TWO_SERVERS,
            r"19: engine 'llm', replica 1: needs 48.00 GiB of cuda:0, with engine 'llm', replica 0 96.00 GiB "
            r"in all, of 80.00 GiB; give it another device or less memory",
        ),
        (
            TWO_SERVERS.replace('["cuda:0"]\nc', '["cuda:1"]\nc'),
            r"13: engine 'llm', replica 0: device 'cuda:1' is not of this machine, which has cuda:0, cpu:0",
        ),
        (
            TWO_SERVERS.replace('["cuda:0"]\nc', '["gpu"]\nc'),
            r"10: device 'gpu' is unknown; a device is 'cuda:N' or 'cpu:N'",
        ),
        (
            LLM + '[[replica]]\nengine = "llm"\nexecutable = "transformer"\n'
            'config = { path = ".", device = "cuda:77" }',
            r"\d+: engine 'llm', replica 0: device 'cuda:77' is not of this machine, which has ",
        ),
        (
            TWO_SERVERS.replace("memory_share", "memory"),
            r"14: unknown key 'memory'; did you mean memory_share\?; known keys: model, .* grace_s",
        ),
        (
            LLM + STAND_IN + 'sort = "fast"\n',
            r"9: unknown key 'sort'; did you mean port\?; known keys: engine, executable, config",
        ),
        (LLM + STAND_IN + "[engines]\n", r"9: unknown table or key 'engines'; there are \[\[engine\]\]"),
        (
            LLM + STAND_IN.replace("stand-in", "vllm"),
            r"8: there is no executable 'vllm'; there are transformer, .*server:vllm",
        ),
        (LLM + STAND_IN + 'runs_in = "loop"\n', r"9: runs_in is 'loop'; .* runs in thread or process$"),
        (
            LLM + STAND_IN + 'runs_in = "ray"\n',
            r"9: runs_in is 'ray'; .* runs in thread or process; in Ray an LLM is a server .* 'server:vllm'",
        ),
        (
            LLM + STAND_IN.replace("stand-in", "openai") + 'runs_in = "ray"\nconfig = { url = "http://h" }\n',
            r"9: runs_in is 'ray'; this executable runs in loop; in Ray an LLM is a server process",
        ),
        (
            LLM.replace('"llm"', '"gpt"', 1) + STAND_IN.replace('"llm"', '"gpt"'),
            r"2: no app uses an engine 'gpt'; they use chunking, embedding, vectors, reranking, llm, llm_sma",
        ),
        (LLM, r"2: engine 'llm' has no \[\[replica\]\]; it needs at least one"),
        (
            LLM.replace('contract = "llm"\n', "") + STAND_IN.replace("stand-in", "reranking"),
            r"7: 'reranking' cannot be the engine 'llm'; these can: transformer, ",
        ),
        (
            LLM + STAND_IN.replace("[[rep", 'policy = "best"\n[[rep'),
            r"6: there is no policy 'best'; there ar",
        ),
        (
            LLM + STAND_IN.replace("stand-in", "transformer") + "threads = 2\nruns_in = 'process'\n"
            "config = { path = 'x', num_threads = 3 }\n",
            r"11: config.num_threads is 3, but the replica has threads; leave it out",
        ),
        (
            '[[engine]]\nname = "embedding"\n[[replica]]\nengine = "embedding"\nexecutable = "embedding"\n'
            '[[replica]]\nengine = "embedding"\nexecutable = "embedding"\nconfig = { model = "other" }\n',
            r" engine 'embedding', replica 1: model is 'other', but texts are embedded by 'all-MiniLM-L6-v2'",
        ),
    ],
)
def test_a_file_that_cannot_be_is_refused(
    stretto: CommandLine, doc: Path, tmp_path: Path, deployed: list[Deployment], text: str, message: str
) -> None:
    file = tmp_path / "engines.toml"
    file.write_text(text)
    refused = stretto.refuses("ask", QUESTION, "--docs", doc, "--engines", file)
    assert re.match(f"ConfigError: {re.escape(str(file))}:{message}", refused), refused
    assert deployed == []


def test_options_that_cannot_be_are_refused(
    stretto: CommandLine, doc: Path, tmp_path: Path, deployed: list[Deployment], tiny_checkpoint: Path
) -> None:
    url = ("--llm", "http://127.0.0.1:9")
    at_server = ("--embedder", "http://127.0.0.1:9")
    model = ("--llm", tiny_checkpoint)
    file = tmp_path / "engines.toml"
    file.write_text(LLM + STAND_IN)
    for args, message in (
        (
            (*url, *at_server, "--dtype", "bfloat16"),
            "--dtype is for models that run on this machine, and none",
        ),
        (
            (*url, "--app", "search", "--device", "cuda"),
            "--device is for models that run on this machine, and",
        ),
        ((*url, "--device", "gpu"), "--device 'gpu' is unknown; it must be 'cpu', 'cuda', 'auto', "),
        ((*url, "--replicas", 2), "--replicas is for an --llm that is a folder"),
        ((*url, "--runs-in", "process"), "--runs-in is for an --llm that is a folder"),
        (("--replicas", 0), "--replicas is 0; it must be a whole number of at least 1"),
        (("--runs-in", "ray"), "--runs-in is 'ray'; it must be 'thread' or 'process'"),
        (
            ("--engines", file, *at_server, "--device", "cuda"),
            "--device is for models that run on this machine, and none does beside those of the engines file",
        ),
        (("--policy", "best"), "there is no policy 'best'; there are programs_first, "),
        ((*model, "--dtype", "int4"), "there is no dtype 'int4'; there are float32, bfloat16, float16"),
        ((*model, "--device", "gpu"), "--device 'gpu' is unknown; it must be 'cpu', 'cuda', 'auto', "),
        ((*model, "--device", "cpu:0"), "--device 'cpu:0' is one core, which takes a process: add --runs-in"),
        ((*model, "--device", "cuda:77"), "engine 'embedding', replica 0: device 'cuda:77' is not of this"),
        (
            (*model, "--device", "cpu:7777", "--runs-in", "process"),
            "engine 'llm', replica 0: device 'cpu:7777' is not of this machine, which has ",
        ),
        (("--engines", tmp_path / "no.toml"), f"{tmp_path}/no.toml: cannot be read"),
        (("--engines", file, *url), f"{file} describes the engine 'llm', and --llm describes it again"),
        (
            ("--engines", file, "--replicas", 0),
            f"{file} describes the engine 'llm', and --replicas describes",
        ),
    ):
        refused = stretto.refuses("ask", QUESTION, "--docs", doc, *args)
        assert refused.startswith(f"ConfigError: {message}"), refused
    assert deployed == []


IN_RAY = (
    LLM
    + '[[replica]]\nengine = "llm"\nexecutable = "server:vllm"\nruns_in = "ray"\nconfig = { model = "m" }\n'
)


@pytest.mark.parametrize(
    ("text", "address", "message"),
    [
        (
            IN_RAY,
            "",
            "engine 'llm': a replica has runs_in 'ray', but the runtime has no ray_address; give the",
        ),
        (IN_RAY, "127.0.0.1:9", r"the Ray address '127.0.0.1:9' does not answer .* give the address that it"),
    ],
)
def test_a_ray_cluster_that_is_not_there_is_refused(
    stretto: CommandLine,
    doc: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    address: str,
    message: str,
) -> None:
    pytest.importorskip("ray")
    file = tmp_path / "engines.toml"
    file.write_text(text)
    monkeypatch.setenv("RAY_ADDRESS", address)
    refused = stretto.refuses("ask", QUESTION, "--docs", doc, "--engines", file)
    assert re.match(f"ConfigError: {message}", refused), refused
    refused = stretto.refuses("profile", "llm", "--engines", file)
    assert refused == "ConfigError: a server's engine is profiled where it runs"


def test_two_replicas_on_one_accelerator_are_refused(
    stretto: CommandLine,
    doc: Path,
    deployed: list[Deployment],
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stretto.cluster.machine import Machine

    monkeypatch.setattr("stretto.cli.engines.detect_devices", lambda: Machine(("cuda:0",)))
    args = ("ask", QUESTION, "--docs", doc, "--llm", tiny_checkpoint, "--device", "cuda:0")
    refused = stretto.refuses(*args, "--runs-in", "process", "--replicas", 2)
    assert "engine 'llm', replica 1: device cuda:0 holds engine 'llm', replica 0 already" in refused
    assert "give them different devices" in refused
    assert deployed == []


def test_what_a_file_describes_is_not_said_again(
    stretto: CommandLine, doc: Path, tmp_path: Path, deployed: list[Deployment]
) -> None:
    file = tmp_path / "engines.toml"
    rows = "".join(
        f'[[engine]]\nname = "{name}"\n[[replica]]\nengine = "{name}"\nexecutable = "{name}"\n'
        for name in ("embedding", "vectors", "reranking")
    )
    web = '[[engine]]\nname = "web"\n[[replica]]\nengine = "web"\nexecutable = "web"\n'
    file.write_text(f'{rows}{web}config = {{ url = "http://127.0.0.1:9" }}\n')
    for args, message in (
        (("--embedder", "x"), "ConfigError: .* describes the engine 'embedding', and --embedder desc"),
        (("--reranker", "x"), "ConfigError: .* describes the engine 'reranking', and --reranker desc"),
        (("--collection", "c"), "UserError: .* describes the engine 'vectors', and --collection keeps its"),
        (("--app", "search"), "UserError: .* describes the engine 'web', which does not search in --docs"),
    ):
        refused = stretto.refuses("ask", QUESTION, "--docs", doc, "--engines", file, *args)
        assert re.match(message, refused), refused
    assert deployed == []
