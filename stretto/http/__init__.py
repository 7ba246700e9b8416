"""How bytes travel: clients, servers, signals."""


class ClientLeft(Exception):
    """The client has closed its connection before it was answered."""
