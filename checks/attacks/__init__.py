"""Attacks of strangers on the service and the router over real connections, and what they cost everybody."""
