"""What KV is worth that an instance holds in host memory or on disk: the prefill less the time to load it."""

from __future__ import annotations

from typing import NamedTuple

from stretto.model.profile import Profile


class LoadingShares(NamedTuple):
    """Times to load the KV of a token, as shares of the time of its prefill. 1 is worth nothing."""

    host: float = 1.0
    disk: float = 1.0


NO_LOADING = LoadingShares()
"""Shares of an instance of which no loading times are known: what it must load counts as missing."""


def loading_shares(profile: Profile) -> LoadingShares:
    """Return the shares of an instance with these predicted times."""
    if not profile.per_unit_s:
        return NO_LOADING
    return LoadingShares(
        *(
            min(1.0, time_s / profile.per_unit_s) if time_s else 1.0
            for time_s in (profile.host_token_s, profile.disk_token_s)
        )
    )
