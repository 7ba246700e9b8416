"""The table of what belongs to steps of queries is what a search of all members finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stretto.sched.by_step import ByStep

PLACES = st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 3))


@given(st.lists(st.tuples(st.booleans(), PLACES), max_size=40))
def test_members_are_found_by_query_and_node(changes: list[tuple[bool, tuple[str, int, int]]]) -> None:
    table, members = ByStep[int](), dict[tuple[str, int, int], None]()
    for is_added, place in changes:
        if is_added:
            table.add(*place)
            members[place] = None
        elif table.has(*place):
            table.remove(*place)
            del members[place]
        assert set(table) == {query for query, _, _ in members}
        for query in "ab":
            of_query = [(node, one) for found, node, one in members if found == query]
            assert (query in table) == bool(of_query)
            assert sorted(table.of_query(query)) == sorted(one for _, one in of_query)
            for node in range(3):
                assert table.of_node(query, node) == [one for found, one in of_query if found == node]
