"""The routes of OpenAI's API.

POST   /v1/chat/completions      an answer to a chat, by an LLM or an app
POST   /v1/responses             the same in OpenAI's newer API; nothing is kept
POST   /v1/completions           texts that go on from prompts
POST   /v1/embeddings            vectors of texts
POST   /v1/rerank                scores of documents for a query
GET    /v1/models                models: LLMs, engines that embed and rerank, apps
GET    /v1/models/{model}        one of them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stretto.http.refusals import draining
from stretto.http.routes import Handler, Route
from stretto.model.errors import InternalError, StrettoError
from stretto.model.replica import Replica
from stretto.model.values import Document
from stretto.router.own_routes import alias_cards, model_lists
from stretto.runtime.runtime import Runtime
from stretto.service.apps.app_service import AppService
from stretto.service.openai.errors import as_refused
from stretto.service.openai.programs import ServedPrograms
from stretto.service.openai.served_models import EMBEDDING, RERANKING, ServedModels
from stretto.service.openai.text_routes import TextRoutes
from stretto.service.openai.vectors import VectorRoutes
from stretto.service.openai.waits import QueryWaits
from stretto.service.pool.door import PoolDoor
from stretto.service.request import ServiceRequest


class OpenAIRoutes:
    """The routes of OpenAI's API.

    Args:
        documents: documents of chats with apps that bring none.
        spares: replicas of engines that have none yet; the first request to an engine starts its own.
        is_draining: whether the service takes no new work.
        door: lets workers answer what no engine or app does; None without workers.
        waits: an observer of the runtime, for a header of answers; with None, they have none.
    """

    def __init__(
        self,
        runtime: Runtime,
        apps: AppService,
        documents: Sequence[Document],
        spares: Mapping[str, Replica],
        is_draining: Callable[[], bool],
        door: PoolDoor | None = None,
        waits: QueryWaits | None = None,
    ) -> None:
        self._is_draining = is_draining
        self._door = door
        at_workers = "" if door is None else door.pool.engine
        self._models = ServedModels(runtime.deployments, apps.apps, spares, at_workers)
        programs = ServedPrograms(runtime, None if door is None else lambda: door.pool.router_door.programs)
        texts = TextRoutes(runtime, self._models, programs, apps, documents, waits)
        vectors = VectorRoutes(runtime, self._models, programs, spares)
        self.routes = (
            Route("POST", "/v1/chat/completions", self._working(texts.chat, "messages", "chat")),
            Route("POST", "/v1/responses", self._working(texts.respond, "input", "chat")),
            Route("POST", "/v1/completions", self._working(texts.complete, "prompt", "text")),
            Route("POST", "/v1/embeddings", self._working(vectors.embed, "input", EMBEDDING)),
            Route("POST", "/v1/rerank", self._working(vectors.rerank, "documents", RERANKING)),
            Route("GET", "/v1/models", self._list),
            Route("GET", "/v1/models/{model}", self._show),
        )

    def _working(self, handler: Handler[ServiceRequest], prompt: str, kind: str) -> Handler[ServiceRequest]:
        """Return a handler that takes no work from a service that ends, and words errors as OpenAI does. What
        is for another model than those of the service goes to the workers, if there are any.

        Args:
            prompt: name of the field with the prompt.
            kind: kind of work, as `ServedModels.has` takes it.
        """

        async def answer(request: ServiceRequest) -> None:
            if self._is_draining():
                raise draining()
            if self._door is not None:
                asked = await self._door.read_asked(request)
                model = asked.model
                is_known = model is not None and self._models.has(kind, model)
                if not is_known and not self._is_mistaken(model):
                    await self._door.pass_on(request, asked)
                    return
            try:
                await handler(request)
            except InternalError:
                raise
            except StrettoError as error:
                raise as_refused(error, prompt) from error

        return answer

    async def _list(self, request: ServiceRequest) -> None:
        listed: list[object] = [card.to_json() for card in self._models.cards()]
        await request.answer_json({"object": "list", "data": [*listed, *self._at_workers().values()]})

    async def _show(self, request: ServiceRequest) -> None:
        name = request.parts[0]
        if (found := self._at_workers().get(name)) is not None:
            await request.answer_json(found)
        else:
            await request.answer_json(self._models.card(name).to_json())

    def _is_mistaken(self, model: object) -> bool:
        """Return whether a request is for an app that neither the service nor a worker has. The service says
        so itself, for a worker does not know which apps there are.
        """
        return self._models.names_no_app(model) and model not in self._at_workers()

    def _at_workers(self) -> Mapping[str, object]:
        """Return the models of the workers, and the aliases of such models, by name."""
        if self._door is None:
            return {}
        front = self._door.pool.front
        models = {name: card for listed in model_lists(front) for name, card in listed.items()}
        return {**models, **{name: card for name, card in alias_cards(front).items() if name not in models}}
