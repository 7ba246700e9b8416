"""Engine for reranking at a server: vLLM's `/rerank` or TEI's.

Scores are pointwise, so that the hits of one question may be scored in several requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.engines.batch.applications import Op, OpApplication
from stretto.engines.batch.reranking import hits_of
from stretto.engines.batch.server import tei_wire
from stretto.engines.batch.server.client import BatchServer, Request, ServedModel, pieces
from stretto.engines.batch.server.config import BatchServerConfig as BatchServerConfig
from stretto.model.errors import BadServer
from stretto.model.values import Hit, as_text, document_order
from stretto.wire import rerank


class RerankingServer(BatchServer):
    """A batch engine that gives search hits new scores, at a server: how well each answers the question.

    Op `rerank`: ports `question` and `hits` (a list of Hit). Answers the same chunks with new scores, best
    first. Each question has requests of its own; those of a batch are sent at once.
    """

    op_names = ("rerank",)

    def ops(self) -> Mapping[str, Op]:
        """Return the function that scores hits."""
        return {"rerank": self._rerank}

    def _rerank(self, applications: Sequence[OpApplication]) -> list[object]:
        lists = [hits_of(application) for application in applications]
        questions = [application.require("question", str) for application in applications]
        if not any(lists):
            return [[] for _ in lists]
        served = self.served()
        parts = [
            (number, question, part)
            for number, (question, hits) in enumerate(zip(questions, lists, strict=True))
            for part in pieces(hits, served.max_texts)
        ]
        answers = self.post_all([_request(served, question, part) for _, question, part in parts])
        scored: list[list[Hit]] = [[] for _ in lists]
        for (number, _, part), answer in zip(parts, answers, strict=True):
            scores = _scores(served, answer, len(part))
            scored[number] += [Hit(hit.chunk, score) for hit, score in zip(part, scores, strict=True)]
        return [document_order(hits) for hits in scored]


def _request(served: ServedModel, question: str, hits: Sequence[Hit]) -> Request:
    texts = [as_text(hit) for hit in hits]
    if served.is_tei:
        return tei_wire.RERANK, tei_wire.tei_rerank_request(question, texts)
    return rerank.PATH, rerank.rerank_request(served.name, question, texts, truncates=served.truncates)


def _scores(served: ServedModel, answer: object, num_hits: int) -> list[float]:
    if served.is_tei:
        return rerank.read_scores(answer, num_hits, "score")
    if not isinstance(answer, dict):
        raise BadServer(f"the server sent no scores: {ascii(answer)[:200]}")
    return rerank.read_scores(answer.get("results"), num_hits)
