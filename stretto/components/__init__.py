"""Ready-made components, the parts that apps are composed of."""

from stretto.components.agent import Agent
from stretto.components.branches import Condition, FirstPresent
from stretto.components.llm_call import LLMCall
from stretto.components.map_reduce import MapReduce
from stretto.components.rag import Indexing, QueryExpansion, Reranking, Searching, Synthesis
from stretto.components.search import Generation, Judge, Reading, WebSearch
from stretto.components.splitting import Splitting
from stretto.components.tool_call import ToolCall
from stretto.components.tools import Tool

__all__ = [
    "Agent",
    "Condition",
    "FirstPresent",
    "Generation",
    "Indexing",
    "Judge",
    "LLMCall",
    "MapReduce",
    "QueryExpansion",
    "Reading",
    "Reranking",
    "Searching",
    "Splitting",
    "Synthesis",
    "Tool",
    "ToolCall",
    "WebSearch",
]
