"""Who has room in KV memory: the machine by itself."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from stretto.cluster.room.blocks_inside import BlocksInside
from stretto.cluster.room.contexts import Context, Program, RoomRequest
from stretto.cluster.room.instance_room import KVBelief
from stretto.cluster.room.room import Entered, Room
from stretto.cluster.room.silences import Returns, Silences, end_s, silence_bin
from stretto.model.tasks import Usage

KV = 10_000
BLOCK = 100


def blocks(name: str, num: int, opening: int = 0) -> tuple[bytes, ...]:
    """Chained hashes: those of the first `opening` blocks are the same for all names."""
    own = f"{name} after {opening}" if opening else name
    return tuple(f"{'all' if place < opening else own} {place}".encode() for place in range(num))


class Machine:
    """A room with instances, and short ways to tell it what happens."""

    def __init__(self, instances: int = 1, kv_tokens: int | None = KV) -> None:
        self.room = Room()
        self.now_s = 0.0
        self.num_calls: dict[str, int] = {}
        for instance in range(instances):
            self.room.join(instance, kv_tokens, 0.001)

    def call(
        self,
        program: str,
        num_blocks: int,
        *,
        content: str = "",
        opening: int = 0,
        is_last: bool = False,
        kind: str = "agent",
    ) -> str:
        """Let a request arrive; return its key."""
        number = self.num_calls[program] = self.num_calls.get(program, 0) + 1
        key = f"{program}{number}"
        hashes = blocks(content or program, num_blocks, opening)
        returns: Returns = "unlikely" if is_last else "likely"
        request = RoomRequest(key, program, kind, BLOCK * num_blocks, hashes, BLOCK, 0, returns, is_last)
        self.entered = self.room.arrive(request, self.now_s)
        self.check()
        return key

    def calls(self, program: str, num_blocks: int, **settings: object) -> list[str]:
        """Let a request arrive; return the keys of the requests that go out then, and send them."""
        self.call(program, num_blocks, **settings)  # type: ignore[arg-type]
        return self.send([*([self.entered] if self.entered else []), *self.room.admit(self.now_s)])

    def room_for(self, program: str, num_blocks: int) -> list[Entered]:
        """Let a request arrive; return what goes out then, and where."""
        self.call(program, num_blocks)
        entered = [*([self.entered] if self.entered else []), *self.room.admit(self.now_s)]
        self.send(entered)
        return entered

    def send(self, entered: Sequence[Entered]) -> list[str]:
        """Send requests where they should go; return their keys."""
        for one in entered:
            self.room.sent(one.key, one.instance or 0)
        self.check()
        return [str(one.key) for one in entered]

    def end(self, key: str, cached: int = 0, num_prompt: int = 1000) -> list[str]:
        """End a request; return the keys of those that go out then, and send them."""
        self.room.ended(key, self.now_s, Usage(num_prompt, cached, 10))
        self.check()
        return self.send(self.room.admit(self.now_s))

    def wait(self, seconds: float) -> list[str]:
        """Let time go by; return the keys of the requests that go out then."""
        found: list[str] = []
        until_s = self.now_s + seconds
        while (due_s := self.room.due_s()) is not None and due_s <= until_s:
            self.now_s = max(self.now_s, due_s)
            found += self.send(self.room.admit(self.now_s))
        self.now_s = until_s
        return found + self.send(self.room.admit(until_s))

    def check(self) -> None:
        self.room.check_invariants()

    @property
    def inside(self) -> list[str]:
        """Programs with room."""
        rooms = self.room.instances.values()
        return sorted(str(one.program.name) for room in rooms for one in room.inside)


def test_what_does_not_fit_beside_those_inside_is_held() -> None:
    machine = Machine()
    assert machine.calls("a", 50) == ["a1"]
    assert machine.calls("b", 30) == ["b1"]
    assert machine.calls("c", 30) == []
    assert machine.inside == ["a", "b"]
    assert [holding.key for holding in machine.room.held] == ["c1"]


def test_the_end_of_a_program_lets_another_enter() -> None:
    machine = Machine()
    machine.calls("a", 50)
    machine.calls("b", 30)
    machine.calls("c", 30)
    assert machine.end("a1") == [], "it is expected to come back"
    machine.room.finished("a")
    assert machine.send(machine.room.admit(0.0)) == ["c1"]
    assert machine.inside == ["b", "c"]


def test_a_program_whose_end_is_not_said_leaves_in_the_end() -> None:
    machine = Machine()
    for name in "ab":
        machine.calls(name, 40)
        machine.end(f"{name}1")
    assert machine.calls("c", 40) == []
    assert machine.wait(60.0) == ["c1"]
    assert "c" in machine.inside


def test_those_that_have_come_back_soon_so_far_are_not_waited_for_longer() -> None:
    machine = Machine()
    for number in range(5):
        machine.calls(f"gone {number}", 1)
        machine.end(f"gone {number}1")
    machine.wait(60.0)
    for number in range(1, 31):
        machine.calls("a", 40)
        machine.end(f"a{number}", cached=4000)
        machine.wait(1.0)
    assert machine.calls("b", 60) == []
    waited_s = next(second for second in range(20) if machine.wait(1.0))
    assert waited_s <= 3


def before_c() -> tuple[Machine, RoomRequest, str]:
    """Return a machine in which a request that another account holds waits before c, that request, and the
    one by whose end there is room.
    """
    machine = Machine()
    machine.calls("a", 50)
    (b1,) = machine.calls("b", 30)
    there = RoomRequest("x1", "x", "agent", 2000, blocks("x", 20), BLOCK, 0, "likely")
    machine.room.follow_held(there, machine.now_s)
    assert machine.calls("c", 30) == []
    machine.room.finished("b")
    return machine, there, b1


def test_what_another_account_holds_has_its_turn_here_too() -> None:
    machine, there, b1 = before_c()
    assert machine.end(b1) == ["x1"]  # c would have fitted, too
    assert machine.inside == ["a", "x"]
    machine.room.follow(there, 0, machine.now_s, is_inside=False)
    machine.check()
    assert machine.send(machine.room.admit(machine.now_s)) == ["c1"]


def test_what_does_not_go_out_elsewhere_gives_its_room_to_others() -> None:
    machine, _, b1 = before_c()
    machine.room.ended(b1, machine.now_s)
    (given,) = machine.room.admit(machine.now_s)
    assert given.key == "x1"
    machine.now_s += 3.0
    machine.room.hold_again("x1", machine.now_s)
    machine.check()
    assert machine.send(machine.room.admit(machine.now_s)) == ["c1"]
    machine.room.finished("c")
    assert machine.end("c1") == ["x1"]


def test_what_goes_by_the_lane_here_and_has_room_elsewhere_counts_once() -> None:
    machine = Machine(instances=2)
    machine.calls("a", 90)
    machine.calls("b", 89)
    there = RoomRequest("x1", "x", "agent", 200, blocks("x", 2), BLOCK, 0, "likely")
    machine.room.follow_held(there, machine.now_s)
    (entered,) = machine.room.admit(machine.now_s)
    assert entered.instance == 0
    assert machine.inside == ["a", "b"]
    machine.room.follow(there, None, machine.now_s, is_inside=True)
    machine.check()
    assert machine.inside == ["a", "b", "x"]
    assert all(room.lane_tokens == 0 for room in machine.room.instances.values())


def test_who_waits_for_a_turn_elsewhere_is_not_silent() -> None:
    machine = Machine()
    (a1,) = machine.calls("a", 50)
    machine.end(a1)
    there = RoomRequest("x1", "a", "agent", 5500, blocks("a", 55), BLOCK, 0, "likely")
    machine.room.follow(there, None, machine.now_s, is_inside=True)
    machine.check()
    machine.wait(1000.0)
    machine.room.look(machine.now_s)
    assert machine.inside == ["a"]


def test_who_is_inside_goes_on_though_others_are_held() -> None:
    machine = Machine()
    machine.calls("a", 40)
    machine.calls("b", 40)
    assert machine.calls("c", 40) == []
    machine.end("a1")
    assert machine.calls("a", 45) == ["a2"]


def test_who_grows_beyond_the_whole_memory_is_held_too() -> None:
    machine = Machine()
    machine.calls("a", 40)
    machine.calls("b", 40)
    machine.end("a1")
    assert machine.calls("a", 70) == []
    assert machine.inside == ["b"]
    machine.room.finished("b")
    assert machine.end("b1") == ["a2"]


def test_a_shared_opening_counts_once() -> None:
    machine = Machine()
    for name in "abcd":
        assert machine.calls(name, 40, opening=30) == [f"{name}1"]
    (room,) = machine.room.instances.values()
    assert room.blocks.tokens == (30 + 4 * 10) * BLOCK
    machine.end("a1")
    machine.room.finished("a")
    machine.check()
    assert room.blocks.tokens == (30 + 3 * 10) * BLOCK


@pytest.mark.parametrize("seed", range(10))
def test_blocks_inside_are_found_as_if_each_were_counted_alone(seed: int) -> None:
    draw, inside, program = random.Random(seed), BlocksInside(), Program("any", 0.0)
    contexts: list[Context] = []

    def prompt() -> list[bytes]:
        letters = [draw.choice("ab") for _ in range(draw.randrange(9))]
        return ["".join(letters[: end + 1]).encode() for end in range(len(letters))]

    for number in range(150):
        what = draw.random()
        if contexts and what < 0.3:
            inside.remove(contexts.pop(draw.randrange(len(contexts))))
        elif contexts and what < 0.6:
            hashes = prompt()
            request = RoomRequest(number, "any", "agent", BLOCK * len(hashes), hashes, BLOCK)
            inside.go_on(draw.choice(contexts), request)
        else:
            contexts.append(Context(number, program, Silences("likely"), prompt(), BLOCK))
            inside.add(contexts[-1])
        inside.check_invariants()
        users: dict[bytes, list[int]] = {}
        for one in contexts:
            for block in one.blocks:
                users.setdefault(block, []).append(one.number)
        assert inside.tokens == BLOCK * len(users)
        asked = prompt()
        of_last = [users[block] for block in asked if block in users][-1:]
        only = of_last[0][0] if of_last and len(of_last[0]) == 1 else None
        assert inside.find(asked) == (sum(block in users for block in asked), only)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_with_colliding_hashes_are_given_back(seed: int) -> None:
    draw, inside, program = random.Random(seed), BlocksInside(), Program("any", 0.0)
    contexts: dict[Context, None] = {}
    for number in range(300):
        hashes = [draw.choice([b"a", b"b", b"c"]) for _ in range(draw.randrange(12))]
        if contexts and draw.random() < 0.5:
            one = draw.choice(list(contexts))
            if draw.random() < 0.5:
                inside.remove(one)
                del contexts[one]
            else:
                inside.go_on(one, RoomRequest(number, "any", "agent", 0, hashes))
        else:
            one = Context(number, program, Silences("likely"), hashes)
            inside.add(one)
            contexts[one] = None
        assert inside.tokens <= sum(len(one.blocks) for one in contexts)
    for one in contexts:
        inside.remove(one)
    assert inside.tokens == 0
    assert inside.find([b"a"]) == (0, None)


def test_small_requests_do_not_wait_behind_large_ones() -> None:
    machine = Machine()
    machine.calls("a", 60)
    machine.calls("b", 29)
    assert machine.calls("c", 60) == []
    assert machine.calls("chat", 2) == ["chat1"]
    assert machine.calls("chat", 2) == ["chat2"]
    assert machine.calls("chat", 2) == [], "the lane is full"
    assert machine.end("chat1") == ["chat3"]


def test_the_lane_leads_a_context_to_the_instance_that_has_it() -> None:
    """Small agents hopped between instances, whose lanes were empty by turns, and computed their prompts
    anew: four servers did 6 % less.
    """
    machine = Machine(instances=2)
    for name in "ab":
        machine.calls(name, 90)
    assert all(one.inside for one in machine.room.instances.values())
    machine.calls("c", 60)
    (first,) = machine.room_for("chat", 1)
    (other,) = machine.room_for("other", 1)
    assert {first.instance, other.instance} == {0, 1}
    for key in (first.key, other.key):
        machine.room.ended(key, machine.now_s, Usage(100, 0, 10))
    (later,) = machine.room_for("other", 1)
    (again,) = machine.room_for("chat", 1)
    assert (again.instance, later.instance) == (first.instance, other.instance)


def test_nobody_overtakes_a_large_program_that_is_next() -> None:
    machine = Machine()
    machine.calls("a", 60)
    machine.calls("big", 90)
    machine.now_s = 1000.0
    assert machine.calls("b", 25) == [], "it would fit, but big is older for its need"
    machine.room.finished("a")
    assert machine.end("a1") == ["big1"]


def agents_for_ever(machine: Machine, names: str, num_blocks: int, until_s: float) -> list[str]:
    """Let agents come back a second after each answer; return which requests of others went out."""
    others = []
    while machine.now_s < until_s:
        gone = [key for name in names for key in machine.calls(name, num_blocks)]
        others += [key for key in gone if key[0] not in names]
        running = [str(key) for key in machine.room._requests if not machine.room.held.get(key)]
        machine.now_s += 1.0
        for key in running:
            others += [one for one in machine.end(key) if one[0] not in names]
            if key[0] not in names:
                machine.room.finished(key[:-1])
        others += machine.wait(1.0)
        names = "".join(
            name for name in names if not machine.room.held.get(f"{name}{machine.num_calls[name]}")
        )
    return others


def test_agents_that_live_for_ever_do_not_keep_out_a_large_program() -> None:
    """They leave the reserve alone, into which it would fit only."""
    machine = Machine()
    agents_for_ever(machine, "ab", 25, 4.0)
    assert machine.calls("large", 45) == []
    assert "large1" not in agents_for_ever(machine, "ab", 25, 80.0)
    assert "large1" in agents_for_ever(machine, "ab", 25, 100.0)


def test_agents_that_live_for_ever_give_way_in_the_end() -> None:
    machine = Machine()
    agents_for_ever(machine, "abc", 25, 4.0)
    assert machine.calls("large", 60) == []
    assert "large1" not in agents_for_ever(machine, "abc", 25, 80.0)
    assert "large1" in agents_for_ever(machine, "abc", 25, 100.0)


def test_small_programs_pass_one_that_does_not_fit_for_a_while() -> None:
    machine = Machine()
    machine.calls("a", 60)
    machine.calls("large", 70)
    machine.now_s = 1.0
    assert machine.calls("b", 25) == ["b1"]
    machine.room.finished("b")
    machine.end("b1")
    machine.wait(100.0)
    assert machine.calls("c", 25) == [], "large has been next for longer than 80 s"


def test_the_older_for_its_need_enters_first() -> None:
    machine = Machine()
    machine.calls("a", 90)
    machine.calls("large", 75)
    machine.now_s = 10.0
    machine.calls("small", 10)
    machine.now_s = 15.0
    machine.room.finished("a")
    assert machine.end("a1") == ["small1", "large1"]


def test_nothing_is_held_where_nothing_comes_back() -> None:
    """Queries of one call fill the memory as before: their instance's budget says how many run."""
    machine = Machine()
    for number in range(1, 20):
        assert machine.calls("chat", 30, is_last=True) == [f"chat{number}"]


def test_what_does_not_come_back_takes_no_room_and_is_not_held() -> None:
    machine = Machine()
    for number in range(10):
        machine.calls(f"map {number}", 1, kind="map")
        machine.end(f"map {number}1")
    machine.wait(60.0)
    machine.calls("a", 60)
    machine.calls("b", 25)
    assert machine.calls("held", 60) == []
    assert machine.calls("map", 30, kind="map") == ["map1"]
    assert machine.calls("chat", 30, is_last=True) == ["chat1"]
    assert machine.inside == ["a", "b"]
    machine.room.finished("a")
    assert machine.end("a1") == ["held1"]


def test_a_kind_that_turns_out_not_to_come_back_gives_the_room_of_all_in_the_queue_to_others() -> None:
    """Requests of a burst enter, and wait in their instance's queue, before the first of their kind end."""
    machine = Machine()
    for number in range(8):
        machine.calls(f"done {number}", 1, kind="map")
    queued = set()
    for number in range(12):
        machine.call(f"queued {number}", 10, kind="map")
        queued |= {machine.entered.key} if machine.entered else set()
    assert not machine.room.admit(0.0)
    assert len(queued) == 8
    assert machine.calls("agent", 50) == []
    for number in range(8):
        machine.end(f"done {number}1")
    found = machine.wait(10.0)
    assert {*found} == {"agent1", *(f"queued {number}1" for number in range(12))} - queued
    assert machine.inside == ["agent"]


def test_a_request_that_names_a_new_program_goes_on_with_what_it_begins_with() -> None:
    machine = Machine()
    machine.calls("a", 40)
    machine.calls("b", 30)
    machine.end("a1")
    assert machine.calls("new", 45, content="a") == ["new1"]
    assert machine.inside == ["a", "b"]
    machine.end("new1")
    assert machine.calls("a", 50) == ["a2"]
    assert machine.inside == ["a", "b"]


def test_a_request_that_names_another_program_goes_on_with_what_it_begins_with() -> None:
    machine = Machine()
    machine.calls("a", 40)
    machine.calls("b", 30)
    machine.end("a1")
    machine.end("b1")
    assert machine.calls("b", 45, content="a") == ["b2"]
    machine.end("b2")
    assert machine.calls("b", 33) == ["b3"]
    assert machine.calls("a", 50) == ["a2"]
    assert machine.inside == ["a", "b"]


def test_an_equal_opening_makes_no_equal_program() -> None:
    machine = Machine()
    machine.calls("a", 40, opening=30)
    machine.end("a1")
    assert machine.calls("b", 40, opening=30) == ["b1"]
    assert machine.inside == ["a", "b"]


def one_call(room: Room, program: str, content: str, number: int, num_blocks: int = 2) -> None:
    """Let a request come, go out and end at an instance where there is room for it."""
    hashes = blocks(content, num_blocks)
    request = RoomRequest(number, program, "agent", BLOCK * num_blocks, hashes, BLOCK, 0, "likely", False)
    assert room.arrive(request, 0.001 * number) or room.admit(0.001 * number)
    room.sent(number, 0)
    room.ended(number, 0.001 * number, Usage(BLOCK * num_blocks, 0, 0))


def test_a_program_of_many_contexts_costs_no_more_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is one program, whose calls need not resemble each other."""
    room = Room()
    room.join(0, None, 0.001)
    for number in range(300):
        one_call(room, "session", f"call {number}", number)
    room.check_invariants()
    assert len(room._index) <= 256, "the oldest were forgotten"
    compared = []
    common = Context.common

    def counted(self: Context, others: Sequence[bytes]) -> int:
        compared.append(self)
        return common(self, others)

    monkeypatch.setattr(Context, "common", counted)
    one_call(room, "session", "another call", 300)
    assert len(compared) <= 16


def test_of_many_contexts_of_a_program_that_which_goes_on_is_found() -> None:
    room = Room()
    room.join(0, None, 0.001)
    for number in range(40):
        one_call(room, "session", f"agent {number}", number)
    one_call(room, "session", "agent 3", 40, 3)
    assert len(room._index) == 40
    assert sum(len(instance.inside) for instance in room.instances.values()) == 40


def test_a_silent_context_is_looked_at_at_one_time() -> None:
    """However often an agent comes back, it takes no more memory."""
    room = Room()
    room.join(0, None, 0.001)
    for number in range(200):
        one_call(room, "agent", "agent", number)
    assert len(room._silent._edges) <= 1


def test_endless_memory_has_a_limited_number_of_contexts() -> None:
    room = Room()
    room.join(0, None, 0.001)
    for number in range(4200):
        one_call(room, f"agent {number}", f"agent {number}", number)
    room.check_invariants()
    assert len(room._index) == sum(len(one.inside) for one in room.instances.values()) == 4096


def test_a_new_program_enters_where_most_room_is() -> None:
    machine = Machine(instances=2)
    for name, num_blocks in (("a", 60), ("b", 60), ("c", 30), ("d", 30)):
        assert machine.calls(name, num_blocks) == [f"{name}1"]
    assert sorted(len(room.inside) for room in machine.room.instances.values()) == [2, 2]


def test_what_was_at_a_lost_instance_has_no_room() -> None:
    machine = Machine(instances=2)
    machine.calls("a", 90)
    machine.room.leave(0)
    machine.check()
    assert machine.inside == []
    machine.end("a1")
    assert machine.calls("a", 91) == ["a2"]


def test_without_an_instance_nothing_is_held() -> None:
    machine = Machine()
    machine.calls("a", 90)
    machine.calls("b", 90)
    machine.room.suspend(0)
    assert machine.send(machine.room.admit(0.0)) == ["b1"]
    machine.room.leave(0)
    assert machine.calls("c", 90) == ["c1"]


def test_a_memory_that_is_smaller_than_said_is_found_out() -> None:
    belief = KVBelief(10_000)
    for _ in range(200):
        belief.note(expected=600, cached=600, computed_since=100, taken=5000.0)
    assert belief.tokens == 10_000
    for _ in range(64):
        belief.note(expected=600, cached=0, computed_since=100, taken=5000.0)
    assert belief.tokens == pytest.approx(10_000 * 0.92**2)
    for _ in range(10 * 32):
        belief.note(expected=600, cached=600, computed_since=100, taken=5000.0)
    assert belief.tokens < 10_000 * 0.92**2, "what was too large is not believed again at once"
    for _ in range(200 * 32):
        belief.note(expected=600, cached=600, computed_since=100, taken=5000.0)
    assert 9000 < belief.tokens <= 10_000


def test_a_memory_of_unknown_size_is_endless_until_something_is_missing() -> None:
    belief = KVBelief(None)
    for _ in range(100):
        belief.note(expected=600, cached=0, computed_since=10**9, taken=5000.0)
    assert belief.tokens == float("inf"), "perhaps nothing is cached there at all"
    belief.note(expected=600, cached=600, computed_since=0, taken=5000.0)
    for _ in range(32):
        belief.note(expected=600, cached=0, computed_since=100, taken=5000.0)
    assert belief.tokens < 5000.0


def test_open_silences_count() -> None:
    """Those that never come back are seen although they have no end."""
    silences = Silences("likely")
    assert silences.chance(0.0, 10.0) > 0.9
    for _ in range(20):
        for number in range(silence_bin(10.0)):
            silences.pass_bin(number)
    assert silences.chance(0.0, 10.0) < 0.5


@pytest.mark.parametrize("within_s", [10.0, math.inf])
def test_patience_is_found_anew_only_when_counts_change(
    within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    silences = Silences("likely")
    patience = silences.patience(within_s)
    monkeypatch.setattr(silences, "chance", None)
    assert silences.patience(within_s) == patience


def test_bins_follow_each_other() -> None:
    for number in range(39):
        assert silence_bin(0.999 * end_s(number)) == number
        assert silence_bin(1.001 * end_s(number)) == number + 1
    assert silence_bin(1e12) == 39
    assert Silences("likely").chance(1e12, 1.0) == 0.0


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.long) for n in range(10, 30))]
)
def test_whatever_happens_room_returns_and_each_request_leaves_once(seed: int) -> None:
    draw = random.Random(seed)
    room = Room()
    now_s, number = 0.0, 0
    going: dict[str, None] = {}
    running: dict[str, int] = {}
    held: set[str] = set()
    lengths: dict[str, int] = {}

    def take(entered: Sequence[Entered]) -> None:
        for one in entered:
            assert one.key in held, "it leaves once"
            held.discard(str(one.key))
            going[str(one.key)] = None

    for _ in range(400):
        now_s += draw.expovariate(2.0)
        what = draw.random()
        if what < 0.05:
            room.join(draw.randrange(3), draw.choice((None, 3000, 10_000)), 0.001)
        elif what < 0.07:
            draw.choice((room.leave, room.suspend))(draw.randrange(3))
        elif what < 0.12:
            room.finished(f"p{draw.randrange(12)}")
        elif what < 0.55:
            program, content = f"p{draw.randrange(12)}", f"c{draw.randrange(12)}"
            lengths[content] = max(1, min(80, lengths.get(content, 5) + draw.choice((-20, 1, 3, 8))))
            hashes = blocks(content, lengths[content], draw.choice((0, 4)))
            number += 1
            key = str(number)
            is_last, tail = draw.random() < 0.2, draw.randrange(BLOCK)
            num_tokens = BLOCK * len(hashes) + tail
            returns: Returns = "unlikely" if is_last else "likely"
            request = RoomRequest(key, program, "k", num_tokens, hashes, BLOCK, 5, returns, is_last)
            held.add(key)
            entered = room.arrive(request, now_s)
            take([entered] if entered else [])
        elif what < 0.75 and going:
            key = draw.choice(list(going))
            del going[key]
            running[key] = draw.randrange(3)
            room.sent(key, running[key])
        elif what < 0.95 and running:
            key = draw.choice(list(running))
            del running[key]
            cached = draw.choice((0, 500, 4000))
            room.ended(key, now_s, draw.choice((None, Usage(5000, cached, 5))))
        elif going or held:
            key = draw.choice([*going, *sorted(held)])
            going.pop(key, None)
            held.discard(key)
            room.ended(key, now_s)
        room.check_invariants()
        take(room.admit(now_s))
        room.check_invariants()
    for key in [*going, *running, *sorted(held)]:
        room.ended(key, now_s)
        room.check_invariants()
    for name in range(12):
        room.finished(f"p{name}")
    room.check_invariants()
    assert not room.held
    assert all(one.claims == 0 and one.lane_tokens == 0 for one in room.instances.values())


def test_the_predicted_wait_goes_by_how_fast_tokens_entered_lately() -> None:
    machine = Machine()
    machine.calls("a", 90)
    for number in range(20):
        machine.calls(f"b{number}", 90)
        machine.wait(10.0)
        machine.room.finished("a" if not number else f"b{number - 1}")
        machine.end("a1" if not number else f"b{number - 1}1")
    machine.calls("c", 90)
    machine.calls("d", 90)
    assert 15.0 < machine.room.wait_s(machine.now_s) < 30.0
