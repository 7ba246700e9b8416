"""LLM servers that are started as processes of ours: vLLM, SGLang, llama.cpp."""

from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.engine import ServerProcess

__all__ = ["ServerProcess", "ServerProcessConfig"]
