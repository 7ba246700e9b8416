"""Engines whose texts are embedded or reranked by a server over HTTP."""
