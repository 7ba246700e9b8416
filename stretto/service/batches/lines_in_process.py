"""Lines of Batch files that ask for more than one plain answer, by OpenAI's API on the runtime of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from stretto.engines.chat_markup import RAW
from stretto.graph.one_call import PromptMessage
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.tasks import Objective
from stretto.planner.running.planned_calls import CallAnswer
from stretto.planner.running.run_request import SentLine
from stretto.planner.running.sent_lines import CHAT
from stretto.runtime.runtime import Runtime
from stretto.service.app import ServiceApp
from stretto.service.apps.app_service import AppService
from stretto.service.batches.calls_at_service import begin_asking
from stretto.service.config import Limits, ServiceConfig
from stretto.service.openai.routes import OpenAIRoutes
from stretto.service.openai.text_routes import read_chat, read_completion
from stretto.service.openai.wanted import WantedText, num_prompt_chars

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
_PATHS = (CHAT, COMPLETIONS, RESPONSES)
_MAX_BYTES = 64_000_000
_NO_LIMIT = 2**40


def prompt_and_limit(line: SentLine) -> tuple[Sequence[PromptMessage], int]:
    """Return the longest prompt of a line, and the most tokens of an answer to it (`ReadLine`).

    Raises:
        ConfigError, Refused, RequestRefused: it is for another path, something in it is wrong, or cannot be
            honoured.
    """
    if line.path not in _PATHS:
        raise ConfigError(f"engines that a run starts answer {', '.join(_PATHS)}, not {line.path}")
    content = json.dumps(line.body).encode()
    if line.path == COMPLETIONS:
        _, wanted, _ = read_completion(line.path, [], "", content)
    else:
        found = read_chat(line.path, [], "", (), line.path == RESPONSES, content).wanted
        assert isinstance(found, WantedText), "no model is an app here"
        wanted = found
    longest = max(wanted.prompts, key=lambda prompt: num_prompt_chars([prompt]))
    prompt = [replace(one, role=None) if one.role == RAW else one for one in longest]
    return prompt, wanted.max_tokens


class LinesInProcess:
    """Asks for the answers to lines at the LLM engines of a runtime (`AskLines`).

    Args:
        objective: class of the requests.
    """

    def __init__(self, runtime: Runtime, objective: Objective = "throughput") -> None:
        limits = Limits(sessions=_NO_LIMIT, output_tokens=_NO_LIMIT)
        config = ServiceConfig(limits=limits, max_body_bytes=_MAX_BYTES)
        self._app = ServiceApp(config)
        apps = AppService(runtime, {}, config.apps)
        self._app.routes.add(*OpenAIRoutes(runtime, apps, (), {}, lambda: False).routes)
        self._objective = objective

    def begin(self, line: SentLine, ended: Callable[[CallAnswer | StrettoError], None]) -> Callable[[], None]:
        """Begin to ask for the answer to a line, and return what cancels that (`begin_asking`)."""
        tenant = self._app.tenants.named("")
        assert tenant is not None, "a service without tenants has the one without a name"
        return begin_asking(self._app, tenant, line, ended, self._objective)

    def close(self) -> None:
        """Let go of what reads long bodies."""
        self._app.readers.close()
