"""OpenAI's HTTP API as vLLM speaks it: what is written and read on either side of a connection.

Requests, answers, server-sent events, error bodies, metric names and KV events are data and pure functions
here: nothing opens a socket. A client writes requests and reads answers; a server, a router or a stub reads
requests and writes answers. Only `kv_frames` needs a package, msgspec.

Source: vLLM 0.32, `vllm/entrypoints/openai/` and `vllm/entrypoints/serve/`, and the answers of a running
server.

Internal: it may change with any release.
"""
