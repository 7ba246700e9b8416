"""The tenants of a service: who may use it, and how much."""

from __future__ import annotations

import hashlib
import math

from stretto.http.byte_budget import BudgetPart, ByteBudget
from stretto.http.refusals import Refused, over_limit
from stretto.service.config import Limits, ServiceConfig
from stretto.service.held_values import HeldValues
from stretto.service.idempotency import AnsweredKeys
from stretto.service.refusals import unauthorized

_MINUTE_S = 60.0
_RETRY_S = 1.0


class Tenant:
    """A tenant: an owner of sessions, with what it uses of its limits.

    Attributes:
        name: name for traces and engines; "" where a service has no tenants.
        budget: budget of the bytes that its requests hold.
        values: values that its requests keep alive.
        num_sessions: number of its open sessions.
        num_requests: number of its chats, completions and requests to workers that run or wait.
        answered: answers to requests that carried an idempotency key.
    """

    def __init__(self, name: str, limits: Limits, budget: ByteBudget) -> None:
        self.name = name
        self.limits = limits
        self.budget = budget
        self.values = HeldValues(budget)
        self.num_sessions = 0
        self.num_requests = 0
        self.answered = AnsweredKeys()
        self._num_tokens = limits.tokens_per_minute
        self._counted_s: float | None = None

    def check_session(self) -> None:
        """Check that the tenant may open another session. Raises Refused if not."""
        if self.num_sessions >= self.limits.sessions:
            raise over_limit(f"{self.num_sessions} sessions are open, and no more are allowed", _MINUTE_S)

    def take_request(self, num_tokens: float, now_s: float) -> None:
        """Count a request as running, and spend the tokens that it may take. `end_request` ends it.

        Raises:
            Refused: the tenant has as much running as it may, or has spent its tokens.
        """
        if self.num_requests >= self.limits.sessions:
            running = f"{self.num_requests} requests are running, and no more are allowed"
            raise over_limit(running, _RETRY_S)
        self.check_tokens(num_tokens, now_s)
        self.spend_tokens(num_tokens)
        self.num_requests += 1

    def end_request(self) -> None:
        """Count a request as running no more."""
        self.num_requests -= 1

    def check_output_tokens(self, max_tokens: int) -> None:
        """Check that one output may have so many tokens. Raises Refused if not."""
        if max_tokens > self.limits.output_tokens:
            raise Refused(
                422,
                "over_limit",
                f"max_tokens is {max_tokens}; an output has at most {self.limits.output_tokens} tokens",
            )

    def check_tokens(self, num_tokens: float, now_s: float) -> None:
        """Check that the tenant may ask for so many tokens now. A tenant that rests may spend one minute's at
        once, and more than that only alone.

        Raises:
            Refused: too few are left; it says when there will be enough.
        """
        rate = self.limits.tokens_per_minute
        if math.isinf(rate):
            return
        if self._counted_s is not None:
            grown = self._num_tokens + (now_s - self._counted_s) * rate / _MINUTE_S
            self._num_tokens = min(rate, grown)
        self._counted_s = now_s
        needed = min(num_tokens, rate)
        if needed > self._num_tokens:
            missing = needed - self._num_tokens
            raise over_limit(
                f"the calls ask for {num_tokens:.0f} tokens; {rate:g} are allowed in a minute",
                missing / rate * _MINUTE_S,
            )

    def spend_tokens(self, num_tokens: float) -> None:
        """Take tokens out of what is left of this minute's, after the check."""
        self._num_tokens -= num_tokens


class Tenants:
    """The tenants of a service, found by their API keys. Keys are kept as hashes alone.

    Attributes:
        budget: budget of the bytes that all hold together; where there are several, each has a part of it.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.budget = ByteBudget(config.max_held_bytes)
        self._anybody = None if config.tenant else Tenant("", config.limits, self.budget)
        self._by_key: dict[bytes, Tenant] = {}
        self._by_name: dict[str, Tenant] = {}
        for one in config.tenant:
            budget = BudgetPart(self.budget) if len(config.tenant) > 1 else self.budget
            tenant = Tenant(one.name, one.limits or config.limits, budget)
            self._by_name[one.name] = tenant
            for key in one.keys:
                self._by_key[_hash(key)] = tenant

    def named(self, name: str) -> Tenant | None:
        """Return the tenant of a name; None if there is none. The only tenant of a service without tenants
        has an empty name.
        """
        return self._anybody if self._anybody is not None and not name else self._by_name.get(name)

    def find(self, authorization: str) -> Tenant:
        """Return the tenant of a request by its header `Authorization`.

        Raises:
            Refused: the service has tenants, and the header has no key of one.
        """
        if self._anybody is not None:
            return self._anybody
        scheme, _, key = authorization.partition(" ")
        tenant = self._by_key.get(_hash(key.strip())) if scheme.lower() == "bearer" else None
        if tenant is None:
            raise unauthorized()
        return tenant


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()
