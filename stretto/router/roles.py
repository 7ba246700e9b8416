"""Roles of workers: which part of requests each takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from stretto.model.errors import ConfigError

Role: TypeAlias = Literal["mixed", "prefill", "decode"]
"""Workers of the role "prefill" compute prompts for those of the role "decode"; mixed ones do both."""


def check_role(url: str, role: object) -> None:
    """Check the role of the worker at a URL. Raises ConfigError."""
    if role not in get_args(Role):
        known = ", ".join(get_args(Role))
        raise ConfigError(f"worker {url}: role is {role!r}; it must be one of {known}")


def check_roles(roles: Sequence[Role]) -> None:
    """Check that workers of these roles can answer requests together. Raises ConfigError."""
    if roles and all(role == "prefill" for role in roles):
        raise ConfigError(
            "router: all workers have the role 'prefill', so that none writes answers; add one of the role "
            "'decode' or 'mixed'"
        )
