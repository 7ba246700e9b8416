"""The models of a service: LLM engines, engines that embed and rerank, and apps that answer chats.

An engine is called by its name, or by that of its model. An app is called "app:NAME", or by its name alone
where no engine has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from stretto.model.deployment import Deployment
from stretto.model.replica import Replica
from stretto.service.apps.deployed_app import DeployedApp
from stretto.service.openai.app_chat import AppChat, app_chat
from stretto.service.openai.errors import no_model
from stretto.wire.models import ModelCard

EMBEDDING, RERANKING = "embedding", "reranking"
"""Names of the engines that embed and rerank."""
_PREFIX = "app:"


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """An engine as a model: its name, and the name of what it runs where that is known."""

    name: str
    model: str | None
    is_llm: bool


class ServedModels:
    """The models of a service by the names that requests use.

    Args:
        spares: replicas of engines that have none yet.
        at_workers: name of the engine that workers are; "" for none.
    """

    def __init__(
        self,
        deployments: Mapping[str, Deployment],
        apps: Mapping[str, DeployedApp],
        spares: Mapping[str, Replica],
        at_workers: str = "",
    ) -> None:
        self._at_workers = at_workers
        self._engines = [
            ServedEngine(name, _model_of(one, spares.get(name)), one.engine.is_llm)
            for name, one in deployments.items()
            if one.engine.is_llm or name in (EMBEDDING, RERANKING)
        ]
        self._apps = {app.name: app for found in apps.values() if (app := app_chat(found)) is not None}

    def cards(self) -> list[ModelCard]:
        """Return the models as clients see them listed."""
        engines = [ModelCard(one.name, one.model) for one in self._engines]
        return [*engines, *(ModelCard(f"{_PREFIX}{name}", name) for name in self._apps)]

    def llm(self, model: str) -> str:
        """Return the name of the LLM engine that a request means; "" means the first one.

        Raises:
            Refused: there is none.
        """
        llms = [one for one in self._engines if one.is_llm]
        return self._found(llms, model).name

    def has(self, kind: str, model: object) -> bool:
        """Return whether a request of a kind means a model of the service, which workers are not: "chat",
        "text" (which no app answers), or the name of the engine that embeds or reranks.
        """
        is_vector = kind in (EMBEDDING, RERANKING)
        for one in self._engines:
            if model in ("", one.name, one.model) and (one.name == kind if is_vector else one.is_llm):
                return one.name != self._at_workers
        return kind == "chat" and isinstance(model, str) and self.app(model) is not None

    def names_no_app(self, model: object) -> bool:
        """Return whether a request asks for an app ("app:NAME") that the service does not have."""
        return isinstance(model, str) and model.startswith(_PREFIX) and self.app(model) is None

    def app(self, model: str) -> AppChat | None:
        """Return the app that a chat means; None if it means no app."""
        if any(model in (one.name, one.model) for one in self._engines):
            return None
        return self._apps.get(model.removeprefix(_PREFIX))

    @property
    def app_names(self) -> frozenset[str]:
        """All names of models that are apps."""
        names = (*self._apps, *(f"{_PREFIX}{name}" for name in self._apps))
        return frozenset(name for name in names if self.app(name) is not None)

    def batch_engine(self, kind: str, model: str) -> ServedEngine:
        """Return the engine that embeds or reranks, which a request means; "" means the only one.

        Raises:
            Refused: there is none.
        """
        return self._found([one for one in self._engines if one.name == kind], model)

    def card(self, model: str) -> ModelCard:
        """Return a model by its name. Raises Refused if there is none."""
        for card in self.cards():
            if model in (card.id, card.root):
                return card
        raise no_model(model, [card.id for card in self.cards()])

    def _found(self, engines: list[ServedEngine], model: str) -> ServedEngine:
        for one in engines:
            if model in ("", one.name, one.model):
                return one
        names = [one.name for one in engines]
        if engines and engines[0].is_llm:
            names += [f"{_PREFIX}{name}" for name in self._apps]
        raise no_model(model, names)


def _model_of(deployment: Deployment, spare: Replica | None) -> str | None:
    """Return the name of what an engine runs: of its checkpoint, or of its model at a server."""
    replica = next(iter(deployment.replicas), spare)
    if replica is None:
        return None
    config = replica.instance_config()
    for name in ("model", "path"):
        if (found := getattr(config, name, None)) is not None:
            is_path = name == "path" or PurePath(found).is_absolute()
            return PurePath(found).name if is_path else str(found)
    return None
