"""Which program a request belongs to, found in plain traffic: by ids that clients send, else by content."""
