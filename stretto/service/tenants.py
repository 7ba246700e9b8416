"""The tenants of a service: who may use it, and how much."""

from __future__ import annotations

import math

from stretto.http.byte_budget import BudgetPart, ByteBudget
from stretto.http.refusals import Refused, over_limit
from stretto.model.errors import ConfigError
from stretto.service.api_keys import KeyTable
from stretto.service.config import Limits, ServiceConfig
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
        self._requests = _MinuteRate("the tenant asks for {} requests", limits.requests_per_minute)
        self._tokens = _MinuteRate("the calls ask for {} tokens", limits.tokens_per_minute)

    def limit(self, limits: Limits) -> None:
        """Set other limits."""
        self.limits = limits
        self._requests.limit(limits.requests_per_minute)
        self._tokens.limit(limits.tokens_per_minute)

    def count_request(self, now_s: float) -> None:
        """Count a request that has come. Raises Refused if there are too many in this minute."""
        self._requests.check(1.0, now_s)
        self._requests.spend(1.0)

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
        self._tokens.check(num_tokens, now_s)

    def spend_tokens(self, num_tokens: float) -> None:
        """Take tokens out of what is left of this minute's, after the check."""
        self._tokens.spend(num_tokens)


class _MinuteRate:
    """What is left of this minute's of something that a tenant may use. It grows evenly, up to one minute's.

    Args:
        wants: says what is asked for, with a number in place of braces.
        rate: what may be used in a minute; infinite for no limit.
    """

    def __init__(self, wants: str, rate: float) -> None:
        self._wants = wants
        self._rate = self._left = rate
        self._counted_s: float | None = None

    def limit(self, rate: float) -> None:
        """Set another limit."""
        self._left = rate if math.isinf(self._rate) else min(rate, self._left)
        self._rate = rate

    def check(self, num: float, now_s: float) -> None:
        """Check that so much may be used now. Raises Refused if not; it says when there will be enough."""
        rate = self._rate
        if math.isinf(rate):
            return
        if self._counted_s is not None:
            self._left = min(rate, self._left + (now_s - self._counted_s) * rate / _MINUTE_S)
        self._counted_s = now_s
        needed = min(num, rate)
        if needed > self._left:
            wants = self._wants.format(f"{num:.0f}")
            message = f"{wants}; {rate:g} are allowed in a minute"
            raise over_limit(message, (needed - self._left) / rate * _MINUTE_S)

    def spend(self, num: float) -> None:
        """Take so much out of what is left, after the check."""
        self._left -= num


class Tenants:
    """The tenants of a service, found by their API keys. Keys are kept as hashes alone.

    Attributes:
        budget: budget of the bytes that all hold together; where there are several, each has a part of it.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.budget = ByteBudget(config.max_held_bytes)
        self._anybody = None if config.tenant else Tenant("", config.limits, self.budget)
        self._keys: KeyTable[Tenant] = KeyTable()
        self._by_name: dict[str, Tenant] = {}
        self.replace(config)

    def replace(self, config: ServiceConfig) -> None:
        """Take the tenants of other settings, with their keys and limits. Who is still there goes on with
        what it has used of them.

        Raises:
            ConfigError: there were no tenants, or there are none any more.
        """
        if bool(config.tenant) == (self._anybody is not None):
            raise ConfigError(
                "the first tenant comes, or the last one goes, when the service is started again"
            )
        before, self._by_name, keys = self._by_name, {}, KeyTable[Tenant]()
        is_shared = len(config.tenant) > 1 or bool(before)
        for one in config.tenant:
            limits = one.limits or config.limits
            if (tenant := before.get(one.name)) is None:
                budget = BudgetPart(self.budget) if is_shared else self.budget
                tenant = Tenant(one.name, limits, budget)
            tenant.limit(limits)
            self._by_name[one.name] = tenant
            for key in one.keys:
                keys.add(key, tenant)
        self._keys = keys

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
        tenant = self._keys.find(key.strip()) if scheme.lower() == "bearer" else None
        if tenant is None:
            raise unauthorized()
        return tenant


class HeldValues:
    """The values of one tenant that its requests keep alive. One that many requests read counts once."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held: dict[int, tuple[object, int, int]] = {}
        """Each value by its identity, with its bytes and the number of its readers."""

    def hold(self, value: object, num_bytes: int) -> bool:
        """Add a reader of a value, which counts with `num_bytes` bytes; return False if that is too much."""
        _, counted_bytes, num_readers = self._held.get(id(value), (value, num_bytes, 0))
        if not num_readers and not self._budget.take(num_bytes, 0):
            return False
        self._held[id(value)] = value, counted_bytes, num_readers + 1
        return True

    def release(self, value: object) -> None:
        """Remove a reader of a value; after the last one, the value does not count any more."""
        _, num_bytes, num_readers = self._held[id(value)]
        if num_readers > 1:
            self._held[id(value)] = value, num_bytes, num_readers - 1
        else:
            del self._held[id(value)]
            self._budget.count(-num_bytes)
