"""LLM servers that are started as processes of ours: vLLM, SGLang, llama.cpp."""
