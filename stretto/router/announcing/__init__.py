"""What a router tells other routers before the same workers of its own requests."""
