"""Who may see what concerns all clients of a server: whoever has the admin key. Where there is no key, it is
whoever is on the same machine.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os

from stretto.http.client.headers import Headers, value_of
from stretto.http.refusals import Refused
from stretto.http.served import WholeAnswer
from stretto.model.errors import ConfigError

CHALLENGE = (b"www-authenticate", b'Basic realm="stretto", charset="UTF-8"')
"""Header of a refusal, after which a browser asks for the key: it is the password, of any user."""
ADMIN_ONLY = "admin_only"
HOW_TO_ASK = "send the admin key; where there is none, ask on the same machine, at localhost"
_LOCAL_NAMES = (b"localhost", b"127.0.0.1", b"[::1]")
_FROM_ELSEWHERE = (b"origin", b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via")
"""Headers of web pages and of proxies, which a client on the same machine does not send itself."""


class AdminKey:
    """The key of a server's admin, which may be sent as `Bearer KEY` or as the password of a browser.

    A server that has a key wants it from everybody. At a server without one, clients on the same machine are
    admins, if they name the server by a name of that machine and no header says that a web page or a proxy
    sends the request. A proxy on the same machine may send neither another name nor such a header, so a
    server behind one needs a key.

    Args:
        key_env: environment variable that holds the key; None if there is no key.

    Raises:
        ConfigError: the variable is empty or not set.
    """

    def __init__(self, key_env: str | None) -> None:
        self._key = b""
        if key_env is not None:
            self._key = os.environ.get(key_env, "").strip().encode()
            if not self._key:
                raise ConfigError(
                    f"the environment variable {key_env!r}, which admin_key_env names, is empty or not set; "
                    "it must hold the key"
                )

    def admits(self, headers: Headers, *, is_local: bool) -> bool:
        """Return whether a request may see what concerns all clients."""
        if self._key:
            return hmac.compare_digest(_key_of(value_of(headers, b"authorization") or b""), self._key)
        if not is_local or any(value_of(headers, name) is not None for name in _FROM_ELSEWHERE):
            return False
        host = (value_of(headers, b"host") or b"").lower()
        return host.rpartition(b":")[0] in _LOCAL_NAMES or host in _LOCAL_NAMES


def admin_refusal() -> WholeAnswer:
    """Return the answer to a browser that is no admin, which then asks for the key."""
    error = admin_only()
    body = json.dumps({"error": {"message": error.message, "type": error.code, "code": error.status}})
    return error.status, [(b"content-type", b"application/json"), CHALLENGE], body.encode()


def admin_only() -> Refused:
    """Return the refusal of a request by whoever is no admin."""
    return Refused(401, ADMIN_ONLY, f"this is for the admin: {HOW_TO_ASK}")


def _key_of(authorization: bytes) -> bytes:
    """Return the key in a header `Authorization`; b"" if it has none."""
    scheme, _, value = authorization.partition(b" ")
    match scheme.lower():
        case b"bearer":
            return value.strip()
        case b"basic":
            try:
                return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
            except binascii.Error:
                return b""
    return b""
