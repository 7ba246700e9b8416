"""One door: agents and chats of unmodified clients before emulated servers, in real time."""
