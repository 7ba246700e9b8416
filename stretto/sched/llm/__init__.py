"""The scheduler of an LLM engine: what its instances are busy with, and where a request goes."""
