"""Settings of workers that come and go: entries of `[[router.worker]]` that stand for several workers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stretto.model.errors import ConfigError
from stretto.model.number_checks import check_positive

_SELECTOR = re.compile(r"[A-Za-z0-9._/=!(), -]+")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsConfig:
    """Says that each address of a name is a worker of its own.

    Attributes:
        every_s: seconds between two look-ups of the name.
    """

    every_s: float = 10.0

    def __post_init__(self) -> None:
        check_positive("dns", self, ("every_s",))


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig:
    """Says that each ready endpoint of Kubernetes's EndpointSlices is a worker of its own.

    Attributes:
        selector: labels of the EndpointSlices, which are those of their Service, such as "app=vllm", or
            "kubernetes.io/service-name=vllm".
        namespace: where they are; None for the namespace of this pod, or that of the kubeconfig's context.
    """

    selector: str
    namespace: str | None = None

    def __post_init__(self) -> None:
        if not _SELECTOR.fullmatch(self.selector):
            raise ConfigError(f"kubernetes: selector is {self.selector!r:.200}; it must be as in 'app=vllm'")
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigError(f"kubernetes: namespace {self.namespace!r:.200} is no name of one")
