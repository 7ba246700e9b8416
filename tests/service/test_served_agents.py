"""A served agent answers over HTTP with the record of its run."""

from __future__ import annotations

import json
import urllib.request

from support.services import served

from stretto.apps import agent
from stretto.components import tool
from stretto.engines.catalogue import tools_engine
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import deploy
from stretto.model.tasks import Decode, LLMTask
from stretto.service.apps.deployed_app import deploy_app


@tool
def add(a: int, b: int) -> int:
    return a + b


def write(task: LLMTask, decode: Decode) -> str:
    if any(segment.tools is not None for segment in task.prompt):
        return "[]" if decode.items else "It is 5."
    return '[{"name": "add", "arguments": {"a": 2, "b": 3}}]'


def test_the_answer_has_the_record_of_the_run() -> None:
    llm = deploy("llm", lambda config: ScriptedLLM(write, 4), contract="llm", keeps_state=True)
    apps = {"adding": deploy_app("adding", agent([add]))}
    with served([llm, tools_engine([add])], apps=apps) as (_, url):
        body = json.dumps({"inputs": {"question": "2 + 3?"}}).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/v1/apps/adding/queries", body, headers)
        with urllib.request.urlopen(asked) as answer:
            outputs = json.load(answer)["outputs"]
    assert outputs["answer"] == "It is 5."
    assert outputs["run"]["ended"] == "answered"
    ((call,),) = outputs["run"]["turns"]
    assert (call["name"], call["text"], call["outcome"]) == ("add", "5", "done")
