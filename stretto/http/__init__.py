"""How bytes travel: clients, servers, signals.

Internal: it may change with any release.
"""


class ClientLeft(Exception):
    """The client has closed its connection before it was answered."""
