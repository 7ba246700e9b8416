"""How near the predicted effect of one more worker is to that of one more emulated server."""
