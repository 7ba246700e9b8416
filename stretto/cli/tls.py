"""The options of TLS: settings of a server with those of the command line in place of a file's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from stretto.http.tls import ClientTls, ServerTls
from stretto.model.errors import ConfigError

if TYPE_CHECKING:
    from stretto.router.config import RouterConfig
    from stretto.service.config import ServiceConfig

    _Config = TypeVar("_Config", RouterConfig, ServiceConfig)


def with_tls(config: _Config, certificate: str | None, key: str | None) -> _Config:
    """Return the settings of a server with what it shows its clients. Raises ConfigError."""
    if certificate is None and key is None:
        return config
    if certificate is None or key is None:
        raise ConfigError("give --tls-certificate and --tls-key together")
    return replace(config, tls=ServerTls(certificate=certificate, key=key))


def with_worker_tls(
    config: RouterConfig, ca: str | None, certificate: str | None, key: str | None
) -> RouterConfig:
    """Return the settings of a router with what it believes and shows workers. Raises ConfigError."""
    if ca is None and certificate is None and key is None:
        return config
    if (certificate is None) != (key is None):
        raise ConfigError("give --worker-certificate and --worker-key together")
    found = config.worker_tls or ClientTls()
    return replace(
        config,
        worker_tls=replace(
            found,
            ca=found.ca if ca is None else ca,
            certificate=found.certificate if certificate is None else certificate,
            key=found.key if key is None else key,
        ),
    )
