"""Checks against unmodified servers by others: vLLM and llama.cpp."""
