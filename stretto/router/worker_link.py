"""The way to one worker: its connections, its URL, and the headers that it wants with each request."""

from __future__ import annotations

from stretto.http.client.connection import ServerConnections
from stretto.http.client.headers import Headers
from stretto.http.tls import ClientTls
from stretto.operate.certificates import Certificates
from stretto.router.head import request_head
from stretto.router.keys import KEY_HEADERS
from stretto.router.worker_config import WorkerConfig
from stretto.router.worker_url import parse_address
from stretto.wire.server_url import read_server_url

_JOINED_BYTES = 65_536
"""Length up to which a body is sent together with its head; a longer one is not copied."""


class WorkerLink:
    """The way to one worker.

    Args:
        connect_timeout_s: seconds that a connection may take.
        certificates: certificates for handshakes of TLS.
        usual_tls: what holds for a worker whose settings have nothing of TLS.

    Attributes:
        name: URL of the worker as its settings have it.
        connections: connections to the worker.
        url: URL of the worker; a guess about its paths may be replaced.
        takes_priority: whether it takes the field `priority`.
    """

    def __init__(
        self,
        config: WorkerConfig,
        connect_timeout_s: float,
        certificates: Certificates,
        usual_tls: ClientTls | None = None,
    ) -> None:
        self.name = config.url
        address = parse_address(config.url)
        # the system's authorities take a tenth of a second to read
        tls = (config.tls or usual_tls or ClientTls()) if address.is_tls else None
        context = None if tls is None else certificates.of_client(tls)
        name = None if tls is None else tls.server_name
        self.connections = ServerConnections(address, connect_timeout_s, context, name)
        self.url = read_server_url(config.url)
        self.takes_priority = config.takes_priority
        self._headers = config.own_headers()
        self._path, self._authority = address.path.encode(), address.authority.encode()

    def request(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[bytes, bytes]:
        """Return a request in two parts, to be sent one after the other; the second may be empty.

        Headers of the worker's settings are added where `headers` have none of the same name, and a key only
        if they bring none.
        """
        if self._headers:
            headers = [*headers, *self._missing(headers)]
        path = self._path + self._target(target)
        head = request_head(method, path, self._authority, headers, len(body))
        return (head + body, b"") if len(body) <= _JOINED_BYTES else (head, body)

    def _target(self, target: bytes) -> bytes:
        """Return the target of a request as this worker's URL wants it."""
        if self.url.has_version and not self.url.query:
            return target
        path, _, query = target.decode("latin-1").partition("?")
        found = self.url.target(path.removeprefix("/"))
        mark = "&" if "?" in found else "?"
        return f"/{found}{mark}{query}".encode("latin-1") if query else f"/{found}".encode("latin-1")

    def _missing(self, headers: Headers) -> Headers:
        names = {name for name, _ in headers}
        if not names.isdisjoint(KEY_HEADERS):
            names.update(KEY_HEADERS)
        return [line for line in self._headers if line[0] not in names]
