"""Prompts in the tokens of models on this machine: what is too long is refused before anything starts, and
plans know how long prompts are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from stretto.engines.llms import STAND_IN, checkpoint_path
from stretto.model.errors import CapacityError, ConfigError, StrettoError
from stretto.model.values import Segment
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.prompt_slots import fill
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.run_request import RunRequest
from stretto.planner.token_counts import ModelTokens

_TEMPLATE_TOKENS = 256
"""More tokens than the template of a chat adds to a prompt."""


class PromptLengths:
    """The lengths of prompts in tokens, for nodes whose models are checkpoints on this machine.

    Models of kinds that only the reference engine runs are left out. Tokenizers are read when they are
    needed; one that cannot be used raises ConfigError.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._models = {node.name: model for node in app.nodes if (model := _model(node.model)) is not None}

    def check(self, requests: RequestStore) -> None:
        """Check that each request's own text fits into the context of the models that read it; lines of a
        Batch file that do not fit are refused alone. Answers that prompts take are not known yet.

        Raises:
            CapacityError: a prompt of another line is too long; the message names request, node, model and
                both numbers.
        """
        if not self._models:
            return
        caps = [kind.max_tokens or 0 for kind, _ in requests.kinds()]
        own = max(len(node.prompt.encode()) + max(node.max_tokens, *caps) for node in self._app.nodes)
        if all(model.surely_has_room(requests.longest_line + own) for model in self._models.values()):
            return
        too_long: dict[int, StrettoError] = {}
        for number in range(len(requests)):
            try:
                self._check(requests.get(number))
            except CapacityError as error:
                if requests.kind(number).api is None:
                    raise
                too_long[number] = error
        if too_long:
            requests.refuse(too_long)

    def _check(self, request: RunRequest) -> None:
        for name in request.planned.nodes or [node.name for node in self._app.nodes]:
            if (model := self._models.get(name)) is None:
                continue
            node = self._app.node(name)
            cap = (request.decode or {}).get("max_tokens", node.max_tokens)
            for prompt in _own_prompts(node, request):
                if model.surely_has_room(sum(len(segment.text.encode()) for segment in prompt) + cap):
                    continue
                if (found := model.num_tokens(prompt)) + cap > model.context_tokens:
                    raise CapacityError(
                        f"request {request.id!r}: its prompt for node {name!r} has {found} tokens, and its "
                        f"answer up to {cap}; the context of {node.model} is {model.context_tokens} tokens"
                    )

    def counted(self, request: RunRequest) -> AppRequest:
        """Return a request as planners see it, in tokens of the first model that it is for."""
        names = request.planned.nodes or [node.name for node in self._app.nodes]
        model = next((self._models[name] for name in names if name in self._models), None)
        if model is None:
            return request.planned
        prompt = request.segments()
        return replace(
            request.planned,
            prompt_tokens=model.num_tokens(prompt) if prompt else 0,
            chunks=tuple(map(model.num_added, request.chunks)),
        )


class _Model(ModelTokens):
    """A checkpoint on this machine."""

    def __init__(self, folder: Path, context_tokens: int) -> None:
        super().__init__(folder)
        self.context_tokens = context_tokens

    def surely_has_room(self, num_bytes: int) -> bool:
        """Return whether a prompt of so many bytes fits, whatever its tokens: each has at least a byte."""
        return num_bytes + _TEMPLATE_TOKENS <= self.context_tokens


def _model(name: str) -> _Model | None:
    if name == STAND_IN:
        return None
    from stretto.engines.transformer.config import read_config

    folder = checkpoint_path(name)
    try:
        return _Model(folder, read_config(folder).context_tokens)
    except ConfigError:  # as whoever makes the replica will say
        return None


def _own_prompts(node: ModelNode, request: RunRequest) -> Iterator[tuple[Segment, ...]]:
    """Yield what is known of the prompts of a node's calls for a request."""
    if not node.prompt and not node.is_by_chunk and not node.inputs:
        yield request.segments()
        return
    for chunk in request.chunks if node.is_by_chunk else ("",):
        yield (Segment(fill(node.prompt, {"prompt": request.text, "chunk": chunk}), "prompt"),)
