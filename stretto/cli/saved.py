"""What the command line keeps between runs: measured profiles, and what was learned of programs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from stretto.engines.executables import PROFILES, profile_key
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError, UserError
from stretto.model.profile import Profile
from stretto.model.replica import Replica
from stretto.model.user_folders import cache_dir
from stretto.runtime.learned_file import LearnedFile


def profiles_file() -> Path:
    """Return the path of the file where `stretto profile --save` puts measured profiles."""
    return cache_dir() / "profiles.json"


def saved_profiles() -> dict[str, Profile]:
    """Return the latency profiles that were measured and saved on this machine, by engine and model."""
    try:
        path = profiles_file()
    except UserError:  # no home: nothing was saved
        return {}
    try:
        if not path.is_file():
            return {}
        return {name: Profile(**fields) for name, fields in json.loads(path.read_text()).items()}
    except (ConfigError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a file of profiles ({error}); remove it") from error


def learned_file() -> LearnedFile | None:
    """Return the file where `stretto serve` keeps what it learns of programs; None if there is no home."""
    try:
        return LearnedFile(cache_dir() / "learned.json")
    except UserError:
        return None


def save_profile(key: str, profile: Profile) -> Path:
    """Add a latency profile to the file of saved ones under a key (engine and model); return the file's path.

    Raises:
        UserError: the file cannot be written.
    """
    path = profiles_file()
    saved = {name: asdict(known) for name, known in {**saved_profiles(), key: profile}.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(saved, indent=2))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    return path


def with_saved_profiles(deployment: Deployment) -> Deployment:
    """Return an engine with the latency profiles of its replicas replaced by those that were measured and
    saved on this machine.

    They replace built-in profiles only; a profile that an engines file gives stays.
    """
    saved = saved_profiles()

    def known(replica: Replica) -> Replica:
        key = profile_key(deployment.name, replica)
        is_built_in = replica.profile in PROFILES.values()
        return replace(replica, profile=saved[key]) if is_built_in and key in saved else replica

    return replace(deployment, replicas=tuple(map(known, deployment.replicas)))
