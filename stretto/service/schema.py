"""The bodies of requests for sessions, typed.

Those of submit and get are the paper's, and more: a request may carry many calls, values and wishes.

Source: Parrot §7.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from stretto.model.tasks import Criteria, Objective

VariableId: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.:-]*\Z", min_length=1, max_length=128)
]
"""Name of a variable, which its client chooses, unique in its session."""
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


def _no_settings() -> msgspec.Raw:  # a schema cannot show a default of this type
    return _NO_SETTINGS


_NO_SETTINGS = msgspec.Raw(b"{}")


class Placeholder(msgspec.Struct, forbid_unknown_fields=True):
    """A placeholder of a prompt, or an input or output of another call.

    Attributes:
        in_out: true for an output.
        semantic_var_id: variable that it reads or produces. An output without one gets a new variable.
        value: value of an input, in place of a variable.
        transforms: chain of transforms before an input, or after an output; as a text, one a line.
        settings: settings of an output's generation.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    in_out: bool
    semantic_var_id: VariableId | msgspec.UnsetType = msgspec.UNSET
    value: Any = msgspec.UNSET
    transforms: str | tuple[str, ...] = ()
    settings: msgspec.Raw = msgspec.field(default_factory=_no_settings)


class ConversationBody(msgspec.Struct, forbid_unknown_fields=True):
    """A form of conversation that a prompt is put into; without marks, it is that of the model's template."""

    system: str = ""
    user: str | None = None
    assistant: str | None = None
    end: str = ""


class CallBody(msgspec.Struct, forbid_unknown_fields=True):
    """A call: of the prompt of a semantic function, or of an operator, or of an app.

    Attributes:
        prompt: text with placeholders, such as {{input:x}}.
        function: name of the function, for traces and errors.
        each: input to each of whose items the call is applied.
        when: variable without whose value the call is skipped.
        settings: settings of an operator, or of an app's components.
    """

    placeholders: tuple[Placeholder, ...] = ()
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    operator: str | msgspec.UnsetType = msgspec.UNSET
    app: str | msgspec.UnsetType = msgspec.UNSET
    function: Annotated[str, msgspec.Meta(pattern=r"\A[^\W\d][\w.]*\Z", max_length=128)] = "call"
    engine: str = "llm"
    conversation: ConversationBody | None = None
    each: str | None = None
    when: VariableId | None = None
    settings: msgspec.Raw = msgspec.field(default_factory=_no_settings)


class SessionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request to open a session."""

    objective: Objective = "throughput"
    deadline_s: Seconds | None = None
    passes: Literal["weighed", "all", "none"] | tuple[str, ...] = "weighed"


class SubmitBody(msgspec.Struct, forbid_unknown_fields=True):
    """Calls that are submitted together, or one call as in the paper.

    Attributes:
        session_id: session of the calls. Without one, the request opens a session, whose id is answered.
        session: settings of the session that the request opens.
        prompt, placeholders: prompt and placeholders of the one call.
        calls: the calls, which may read each other's outputs, in any order.
        values: values of variables to set.
        wanted: variables that are waited for, or will be, with criteria or null for the session's.
        dropped: variables to give up, after all that.
    """

    session_id: str | msgspec.UnsetType = msgspec.UNSET
    session: SessionBody | msgspec.UnsetType = msgspec.UNSET
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    placeholders: tuple[Placeholder, ...] = ()
    calls: tuple[CallBody, ...] = ()
    values: dict[VariableId, Any] = msgspec.field(default_factory=dict)
    wanted: dict[VariableId, Criteria | None] = msgspec.field(default_factory=dict)
    dropped: tuple[VariableId, ...] = ()


class GetBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request for the value of a variable.

    Attributes:
        timeout_s: seconds to wait at most. They make the work as urgent as a deadline does.
        stream: whether the text is sent as it is generated, as server-sent events.
    """

    session_id: str
    semantic_var_id: VariableId
    criteria: Criteria | None = None
    timeout_s: Seconds | None = None
    stream: bool = False


class SetBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request to set a variable."""

    session_id: str
    semantic_var_id: VariableId
    value: Any
