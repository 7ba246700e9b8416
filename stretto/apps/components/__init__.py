"""Ready-made components, the parts that apps are composed of."""

from stretto.apps.components.agent import Agent
from stretto.apps.components.branches import Condition, FirstPresent
from stretto.apps.components.llm_call import LLMCall
from stretto.apps.components.map_reduce import MapReduce
from stretto.apps.components.rag import Indexing, QueryExpansion, Reranking, Searching
from stretto.apps.components.search import Generation, Judge, Reading, WebSearch
from stretto.apps.components.splitting import Splitting
from stretto.apps.components.synthesis import Synthesis
from stretto.apps.components.tool_call import ToolCall
from stretto.model.tools import AgentRun, Tool, ToolResult
from stretto.transforms.function_tools import tool

__all__ = [
    "Agent",
    "AgentRun",
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
    "ToolResult",
    "WebSearch",
    "tool",
]
