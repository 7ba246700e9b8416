"""How bytes travel: clients, servers, signals."""
