"""Ready-made components, the parts that apps are composed of."""

from stretto.components.rag import Indexing, QueryExpansion, Reranking, Searching, Synthesis
from stretto.components.search import Generation, Judge, Reading, WebSearch

__all__ = [
    "Generation",
    "Indexing",
    "Judge",
    "QueryExpansion",
    "Reading",
    "Reranking",
    "Searching",
    "Synthesis",
    "WebSearch",
]
