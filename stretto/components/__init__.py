"""Ready-made components."""

from stretto.components.rag import Indexing, QueryExpansion, Reranking, Searching, Synthesis

__all__ = ["Indexing", "QueryExpansion", "Reranking", "Searching", "Synthesis"]
