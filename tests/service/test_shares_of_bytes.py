"""Tenants share the bytes that a service may hold: none shuts out another."""

from __future__ import annotations

import pytest

from stretto.http.byte_budget import BudgetPart, ByteBudget
from stretto.model.errors import ConfigError
from stretto.service.config import ServiceConfig, TenantConfig
from stretto.service.tenants import Tenants

MB = 1_000_000


def filled(part: ByteBudget, num_bytes: int = MB) -> int:
    """Let requests of a group, each of so many bytes, take all they get; return the bytes that these hold."""
    while part.take(num_bytes, 0):
        pass
    return part.num_held


def parts(number: int, max_bytes: int = 512 * MB) -> tuple[ByteBudget, list[BudgetPart]]:
    whole = ByteBudget(max_bytes)
    return whole, [BudgetPart(whole) for _ in range(number)]


def test_one_tenant_alone_gets_three_quarters() -> None:
    _, (one, _) = parts(2)
    assert 0.7 * 512 * MB < filled(one) <= 0.75 * 512 * MB


def test_a_tenant_that_holds_all_it_gets_leaves_room_for_others() -> None:
    _, (hog, *others) = parts(4)
    filled(hog)
    for other in others:
        assert other.take(16 * MB, 0)


def test_what_a_tenant_gives_back_goes_to_others() -> None:
    whole, (one, two) = parts(2)
    filled(one)
    before = filled(two)
    one.count(-one.num_held)
    assert filled(two) > 2 * before
    assert whole.num_held == two.num_held


def test_tenants_that_take_by_turns_get_equal_parts() -> None:
    whole, (one, two) = parts(2)
    while one.take(MB, 0) | two.take(MB, 0):
        pass
    assert abs(one.num_held - two.num_held) <= MB
    assert 0.8 * 512 * MB < whole.num_held < 512 * MB


def test_a_large_request_keeps_out_no_small_one_of_its_own_tenant() -> None:
    _, (one, _) = parts(2)
    own = 0
    while one.take(MB, own):
        own += MB
    assert own > 100 * MB
    assert one.take(16 * MB, 0)


def test_the_tenants_of_a_service_have_parts_of_its_budget() -> None:
    keys = [TenantConfig(name=name, keys=(f"key-of-{name}",)) for name in ("ann", "bob")]
    tenants = Tenants(ServiceConfig(tenant=tuple(keys)))
    ann, bob = (tenants.find(f"Bearer key-of-{name}") for name in ("ann", "bob"))
    filled(ann.budget, 16 * MB)
    assert bob.budget.take(16 * MB, 0)
    assert tenants.budget.num_held == ann.budget.num_held + bob.budget.num_held
    for config in (ServiceConfig(), ServiceConfig(tenant=(keys[0],))):
        alone = Tenants(config)
        assert alone.find("Bearer key-of-ann").budget is alone.budget


def test_several_tenants_need_room_for_three_bodies() -> None:
    keys = tuple(TenantConfig(name=name, keys=(name,)) for name in ("ann", "bob"))
    ServiceConfig(max_held_bytes=32 * MB)
    with pytest.raises(ConfigError, match="at least 3 times"):
        ServiceConfig(max_held_bytes=47 * MB, tenant=keys)
    _, (one, _) = parts(2, 48 * MB)
    own = 0
    while own < 16 * MB and one.take(65_536, own):
        own += 65_536
    assert own >= 16 * MB
