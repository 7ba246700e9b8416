"""Ready-made components of apps."""

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
