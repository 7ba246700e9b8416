"""An HTTP router before fleets of OpenAI-compatible servers.

What decides is a state machine without IO (`router_state.py`, with `workers.py` and `waiting.py`). It
chooses workers by the placement policies that the runtime and the simulator use too. What moves bytes is a
thin driver on asyncio's protocols (`attempt.py`, `exchange.py`).

Internal: it may change with any release.
"""
