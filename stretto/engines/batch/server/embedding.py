"""Engine for sentence embeddings at a server: OpenAI's `/v1/embeddings` or TEI's `/embed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stretto.engines.batch.applications import Op, OpApplication
from stretto.engines.batch.embedding import embedded_text
from stretto.engines.batch.server import tei_wire
from stretto.engines.batch.server.client import BatchServer, pieces
from stretto.engines.batch.server.config import BatchServerConfig
from stretto.model.errors import BadServer
from stretto.wire import embeddings
from stretto.wire.embeddings import Vector


class EmbeddingServer(BatchServer):
    """A batch engine that turns texts into vectors of unit length, at a server.

    Op `embed`: port `texts` (str, Chunk or Hit). Answers a float32 vector. A batch becomes as many requests
    as the limits need, which are sent at once. Equal texts of a batch are sent once, so that their vectors
    are equal. The size of the first vector is expected of all later ones.
    """

    op_names = ("embed",)

    def __init__(self, config: BatchServerConfig) -> None:
        """Create the client; nothing is sent yet. Raises ConfigError if the URL or the key is unusable."""
        super().__init__(config)
        self._num_dimensions: int | None = None

    def ops(self) -> Mapping[str, Op]:
        """Return the function that embeds texts."""
        return {"embed": self._embed}

    def _embed(self, applications: Sequence[OpApplication]) -> list[object]:
        texts = [embedded_text(application) for application in applications]
        different = list(dict.fromkeys(texts))
        vectors = dict(zip(different, self._vectors(different), strict=True))
        return [vectors[text] for text in texts]

    def _vectors(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        served = self.served()
        parts = pieces(texts, served.max_texts)
        if served.is_tei:
            answers = self.post_all([(tei_wire.EMBED, tei_wire.embed_request(p)) for p in parts])
            read = tei_wire.read_vectors
        else:
            answers = self.post_all(
                [
                    (
                        embeddings.PATH,
                        embeddings.embeddings_request(served.name, part, truncates=served.truncates),
                    )
                    for part in parts
                ]
            )
            read = embeddings.read_embeddings
        rows = [row for part, answer in zip(parts, answers, strict=True) for row in read(answer, len(part))]
        return [self._checked(row) for row in rows]

    def _checked(self, vector: Vector) -> Vector:
        """Return the vector at unit length. Raises BadServer if it has another size than those before it."""
        if vector.ndim != 1 or not vector.size:
            raise BadServer(f"the server sent a vector of shape {vector.shape}")
        if self._num_dimensions is None:
            self._num_dimensions = vector.size
        if vector.size != self._num_dimensions:
            raise BadServer(
                f"the server sent a vector of {vector.size} numbers after vectors of {self._num_dimensions}"
            )
        length = float(np.linalg.norm(vector.astype(np.float64)))
        if not 0 < length < np.inf:
            raise BadServer(f"the server sent a vector of length {length}")
        return (vector / length).astype(np.float32)
