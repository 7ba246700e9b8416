"""What a line of an OpenAI Batch file has, whoever answers it."""

from __future__ import annotations

from reprlib import repr as short

from stretto.model.errors import UserError

BATCH_FIELDS = ("custom_id", "method", "url", "body")


class LineRefused(UserError):
    """Error: a line of a batch cannot be run.

    Attributes:
        code: kind of error.
        param: field that is wrong.
        custom_id: name of the line; None if it has none.
    """

    def __init__(
        self, code: str, message: str, param: str | None = None, custom_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.custom_id = custom_id


def line_name(custom_id: object, method: object, most_chars: int | None = None) -> str:
    """Return the name of a line. Raises LineRefused if it has none, or no method that can be run."""
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= (most_chars or len(custom_id)):
        size = "" if most_chars is None else f" of 1 to {most_chars} characters"
        message = f"custom_id must be a text{size}, got {short(custom_id)}"
        raise LineRefused("invalid_custom_id", message, "custom_id")
    if method != "POST":
        message = f"method must be 'POST', got {short(method)}"
        raise LineRefused("invalid_method", message, "method", custom_id)
    return custom_id


def check_whole(stream: object, custom_id: str | None = None) -> None:
    """Check that the answer to a line comes as a whole. Raises LineRefused if it is to be streamed."""
    if stream:
        message = "the answer to a line of a batch cannot be streamed: leave stream out"
        raise LineRefused("stream_not_supported", message, "body.stream", custom_id)
