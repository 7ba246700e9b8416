"""Refusals of requests by a server: an HTTP status, what is wrong as one word for programs, and a message.

Each application writes them in the form of its own API.
"""

from __future__ import annotations

from stretto.model.errors import UserError

LARGE_HEAD = "large_head"
SLOW_HEAD = "slow_head"
MALFORMED = "malformed"
TOO_LARGE = "too_large"
TOO_SLOW = "too_slow"
OVER_LIMIT = "over_limit"
NO_UPGRADE = "no_upgrade"
UNSUPPORTED = "unsupported_parameter"
UNKNOWN_PATH = "unknown_path"
WRONG_METHOD = "method_not_allowed"
DRAINING = "draining"


class Refused(UserError):
    """A request that cannot be served as it is.

    Attributes:
        status: HTTP status of the answer.
        code: what is wrong, as one word for programs.
        param: place in the request of what is wrong; None if there is no such place.
        retry_after_s: seconds after which the same request may be served.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        step: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, step=step)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class NotAllowed(Refused):
    """A request with a method that its path does not take.

    Attributes:
        path: path of the request.
        method: method of the request.
        methods: methods that the path takes.
    """

    def __init__(self, path: str, method: str, methods: tuple[str, ...]) -> None:
        message = f"{path!r:.200} takes {', '.join(methods)}, not {method:.20}"
        super().__init__(405, WRONG_METHOD, message)
        self.path = path
        self.method = method
        self.methods = methods


def unknown_path(path: str) -> Refused:
    """Return the refusal of a path where nothing is served."""
    return Refused(404, UNKNOWN_PATH, f"there is nothing at {path!r:.200}")


def large_head(max_bytes: int) -> Refused:
    """Return the refusal of a head that is too large."""
    return Refused(431, LARGE_HEAD, f"the head has more than {max_bytes} bytes")


def too_large(max_bytes: int) -> Refused:
    """Return the refusal of a body that is too large."""
    return Refused(413, TOO_LARGE, f"the body has more than {max_bytes} bytes")


def too_slow(max_s: float) -> Refused:
    """Return the refusal of a body that does not come in time."""
    return Refused(408, TOO_SLOW, f"the body has not come within {max_s:g} s")


def draining() -> Refused:
    """Return the refusal of new work, and of a request that has not come whole, by a server that ends."""
    return Refused(503, DRAINING, "the service is being ended", retry_after_s=1.0)


def over_limit(message: str, retry_after_s: float) -> Refused:
    """Return the refusal of what is beyond a limit now, and may fit later."""
    return Refused(429, OVER_LIMIT, message, retry_after_s=retry_after_s)


def too_much_held() -> Refused:
    """Return the refusal of a request while a server holds all bytes of requests that it may."""
    return over_limit("the server holds as many bytes of requests as it may; try again", 1.0)
