"""The replay of a trace of agents in virtual time: a request arrives when what it waits for has ended, plus
its delay.

Each request is a query of one LLM call. A token is four characters. Prompts of known length are filler; a
conversation goes on with its simulated answers, so that its turns share prefixes as in reality.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from stretto.apps.vocabulary import DEFAULT
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment
from stretto.model.errors import InternalError
from stretto.model.replica import Replica
from stretto.model.tasks import Done, Usage
from stretto.model.values import Prompt
from stretto.sched.actions import Action, Admit, Emit, Reply
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer
from stretto.sched.vocabulary import Vocabulary
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import (
    OutputSource,
    filler,
    filler_output,
    lengths_by_query,
    made_up_token_ids,
)
from stretto.trace.agents.load_report import RequestTimes
from stretto.trace.agents.plan import AgentPlan
from stretto.trace.agents.prompts import Conversations
from stretto.trace.agents.requests import AgentRequest, AgentTrace, ChatPrompt, SizedPrompt

UNKNOWN_OUTPUT_TOKENS = 256
"""Length of the answers whose length a trace does not tell."""

_SEPARATOR = "\x1e"


def simulate_agents(
    trace: AgentTrace,
    llm: Deployment,
    model_of: Callable[[OutputSource], Callable[[Replica], SimulatedModel]],
    *,
    observers: Iterable[Observer] = (),
    vocabulary: Vocabulary = DEFAULT,
) -> list[RequestTimes]:
    """Replay a trace on a simulated LLM engine; return the times of each request, by their ends.

    Args:
        model_of: function from the source of the answers, whose lengths are those of the trace, to the
            simulated model of each replica.
        observers: notified of everything as it happens.
        vocabulary: the policies and placements that the engine may name.
    """
    lengths = {request.id: _output_tokens(request) for request in trace.requests}
    simulated = model_of(filler_output(lengths_by_query(lengths)))
    load = _AgentLoad(trace, llm.name, lengths)
    driver = VirtualDriver(
        [llm],
        models={llm.name: lambda replica: replace(simulated(replica), tokenize=agent_tokens)},
        keeps=False,
        observers=(load.observer, *observers),
        vocabulary=vocabulary,
        on_reply=load.on_reply,
    )
    load.attach(driver)
    driver.run()
    if not load.plan.is_over:
        raise InternalError(f"the replay of {trace.path} ended before its last request")
    return load.times


class _AgentLoad:
    """The queries of a trace: each is submitted when the plan says, and the plan hears of each end."""

    def __init__(self, trace: AgentTrace, engine: str, lengths: Mapping[str, int]) -> None:
        self.plan = AgentPlan(trace)
        self.times: list[RequestTimes] = []
        self.observer = _TokenTimes()
        self._requests = {request.id: request for request in trace.requests}
        self._conversations = Conversations(trace)
        self._graph = request_graph(max(lengths.values()), engine)
        self._started_s: dict[str, float] = {}
        self._driver: VirtualDriver | None = None
        self._planned_s: float | None = None

    def attach(self, driver: VirtualDriver) -> None:
        self._driver = driver
        self._plan_next(driver)

    def on_reply(self, reply: Reply) -> None:
        driver, request = self._driver, self._requests[reply.query]
        assert driver is not None
        if reply.error is None:
            answer = "" if reply.outputs is None else str(reply.outputs["text"])
            self._conversations.add(request, answer)
            self.plan.end(request.id, driver.now_s)
        else:
            self.plan.fail(request.id)
        usage = self.observer.usages.pop(request.id, Usage())
        self.times.append(
            RequestTimes(
                request=request.id,
                due_s=self.plan.due_s(request.id),
                start_s=self._started_s.pop(request.id),
                first_s=self.observer.firsts_s.pop(request.id, None),
                end_s=driver.now_s,
                num_prompt=usage.num_prompt_tokens,
                num_cached=usage.num_cached_tokens,
                num_output=usage.num_output_tokens,
                error=None if reply.error is None else f"{type(reply.error).__name__}: {reply.error.message}",
            )
        )
        self._plan_next(driver)

    def _plan_next(self, driver: VirtualDriver) -> None:
        next_s = self.plan.next_s
        if next_s is not None and (self._planned_s is None or next_s < self._planned_s):
            self._planned_s = next_s
            driver.at(max(next_s, driver.now_s), lambda: self._arrive(driver))

    def _arrive(self, driver: VirtualDriver) -> Sequence[Event]:
        self._planned_s = None
        due = self.plan.start_due(driver.now_s)
        self._started_s.update((request.id, driver.now_s) for request in due)
        self._plan_next(driver)
        return [Submit(request.id, self._graph, {"prompt": self._text(request)}) for request in due]

    def _text(self, request: AgentRequest) -> str:
        prompt = request.prompt
        if isinstance(prompt, SizedPrompt):
            return sized_text(request.id, prompt)
        return chat_text(prompt, self._conversations.messages(request))


class _TokenTimes(Observer):
    """An observer that notes when the first piece of each answer came, and the token counts."""

    def __init__(self) -> None:
        self.firsts_s: dict[str, float] = {}
        self.usages: dict[str, Usage] = {}
        self._queries: dict[int, str] = {}

    def on_action(self, action: Action, now_s: float) -> None:
        match action:
            case Admit(_, _, task):
                self._queries[task.id] = task.query
            case Emit(query):
                self.firsts_s.setdefault(query, now_s)

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, LLMReport) and isinstance(event.event, Done):
            self.usages[self._queries.pop(event.event.task)] = event.event.usage


def sized_text(name: str, prompt: SizedPrompt) -> str:
    """Return a meaningless text of as many tokens as the prompt has; equal blocks have equal texts."""
    if not prompt.blocks:
        return filler(name, prompt.num_tokens)
    text = "".join(filler(f"block {block}", prompt.block_tokens) + "|" for block in prompt.blocks)
    return text[: 4 * prompt.num_tokens - 1]


def chat_text(prompt: ChatPrompt, messages: Sequence[Mapping[str, object]]) -> str:
    """Return the text that a model reads for the messages of a chat, in pieces that are tokenised one by one:
    the tools, then for each message its role and its content, then the role of the answer.
    """
    pieces = [json.dumps(tool) for tool in prompt.tools]
    for message in messages:
        content, calls = message.get("content"), message.get("tool_calls")
        text = content if isinstance(content, str) else json.dumps(content) if content else ""
        pieces += [f"<{message['role']}>", text + (json.dumps(calls) if calls else "")]
    return _SEPARATOR.join([*pieces, "<assistant>"])


def agent_tokens(prompt: Prompt) -> list[int]:
    """Return the made-up token ids of a prompt, whose pieces are tokenised one by one: so a later prompt that
    goes on from an answer begins with the tokens of the prompt and the answer.
    """
    pieces = (piece for segment in prompt for piece in segment.text.split(_SEPARATOR))
    return [token for piece in pieces for token in made_up_token_ids(piece)]


def _output_tokens(request: AgentRequest) -> int:
    return UNKNOWN_OUTPUT_TOKENS if request.output_tokens is None else max(1, request.output_tokens)


def request_graph(max_tokens: int, engine: str = "llm") -> ExecutionGraph:
    """Return the smallest app as a compiled graph: one prompt, completed by the LLM with at most `max_tokens`
    tokens.
    """
    text = (
        f"graph request(%prompt: text)\n%kv = prefill([%prompt]) : kv @{engine}\n"
        f"%text = decode(%kv) {{max_tokens={max_tokens}}} : text @{engine}\nreturn %text"
    )
    return compile_graph(parse_graph(text), {})
