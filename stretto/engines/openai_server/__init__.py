"""An LLM behind any server that speaks OpenAI's API: vLLM, SGLang, llama.cpp."""

from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.server import OpenAIServer

__all__ = ["OpenAIServer", "OpenAIServerConfig"]
