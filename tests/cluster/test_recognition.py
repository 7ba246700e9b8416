"""The machine that recognises programs, by itself."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from stretto.cluster.recognition.fingerprints import ChatPrint, TextPrint, Turn
from stretto.cluster.recognition.ids import ProgramIds
from stretto.cluster.recognition.messages import AnswerTexts, AskedProgram, Recognised
from stretto.cluster.recognition.recognised_program import RecognisedProgram, TenantPrograms
from stretto.cluster.recognition.recogniser import Recogniser

TASK: list[Turn] = [("user", "Write a parser for the configuration files of the old system.")]
FIRST = "I shall read the old parser first, and then write tests for the new one."
OTHER = "The format has three versions, so let me list what they have in common."
NEXT: Turn = ("tool", "parser.py: 300 lines")


def said(text: str) -> Turn:
    return "assistant", text


class Traffic:
    """A recogniser, and short ways to tell it what happens."""

    def __init__(self, most_programs: int = 1000) -> None:
        self.machine = Recogniser(most_programs)

    def ask(self, prompt: Sequence[Turn] | str | None, tenant: str = "t", **ids: object) -> Recognised:
        made = TextPrint(tenant, prompt) if isinstance(prompt, str) else prompt and ChatPrint(tenant, prompt)
        found = self.machine.arrive(AskedProgram(tenant, ProgramIds(**ids), made or None))  # type: ignore[arg-type]
        self.machine.check_invariants()
        return found

    def answer(self, found: Recognised, text: str | None, *given: str, stored: str = "") -> None:
        texts = None if text is None else AnswerTexts(text, text, given, stored)
        self.machine.answered(found.key, texts)
        self.machine.check_invariants()

    def call(
        self, prompt: Sequence[Turn] | str, text: str | None, *given: str, tenant: str = "t", **ids: object
    ) -> Recognised:
        """Let a request arrive and be answered."""
        found = self.ask(prompt, tenant, **ids)
        self.answer(found, text, *given)
        return found

    def fail(self, found: Recognised) -> None:
        self.machine.failed(found.key)
        self.machine.check_invariants()


def test_a_prompt_that_begins_with_another_and_its_answer_goes_on_with_that_program() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST)
    assert (one.confidence, one.way) == ("new", "opening")
    later = traffic.ask([*TASK, said(FIRST), NEXT])
    assert (later.program, later.confidence, later.way) == (one.program, "sure", "continues")


def test_an_opening_that_others_share_is_a_program_of_its_own() -> None:
    traffic = Traffic()
    programs = {traffic.call(TASK, f"{FIRST} {number}").program for number in range(5)}
    assert len(programs) == 5
    for number in range(5):
        found = traffic.ask([*TASK, said(f"{FIRST} {number}"), NEXT])
        assert found.program == number + 1


def test_a_twin_waits_where_the_older_one_has_gone_past() -> None:
    """Both have had the same first answer, as with temperature 0."""
    traffic = Traffic()
    one = traffic.call(TASK, FIRST)
    assert traffic.call([*TASK, said(FIRST), NEXT], OTHER).program == one.program
    twin = traffic.call(TASK, FIRST)
    assert twin.program != one.program
    later = traffic.call([*TASK, said(FIRST), ("tool", "no such file")], "It is not here.")
    assert (later.program, later.confidence) == (twin.program, "sure")
    assert traffic.ask([*TASK, said(FIRST), NEXT, said(OTHER), NEXT]).program == one.program


def test_of_twins_that_wait_at_the_same_point_none_is_taken() -> None:
    traffic = Traffic()
    twins = [traffic.call(TASK, FIRST) for _ in range(2)]
    found = traffic.call([*TASK, said(FIRST), NEXT], OTHER)
    assert found.told_as not in {one.program for one in twins}
    assert traffic.ask([*TASK, said(FIRST), NEXT, said(OTHER), NEXT]).program == found.program


def test_a_fork_is_part_of_its_program() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST)
    for number in range(3):
        branch = traffic.call([*TASK, said(FIRST), ("user", f"Try way {number}.")], f"way {number}")
        assert branch.program == one.program
    found = traffic.ask([*TASK, said(FIRST), ("user", "Try way 1."), said("way 1"), ("user", "Good.")])
    assert (found.program, found.way) == (one.program, "continues")


def test_the_deepest_point_decides() -> None:
    """Two programs have the same first turn; what the second answer was tells them apart."""
    traffic = Traffic()
    first = traffic.call(TASK, FIRST)
    traffic.call([*TASK, said(FIRST), NEXT], "a")
    twin = traffic.call(TASK, FIRST)
    traffic.call([*TASK, said(FIRST), NEXT], "b")
    assert traffic.ask([*TASK, said(FIRST), NEXT, said("b"), NEXT]).program == twin.program
    assert traffic.ask([*TASK, said(FIRST), NEXT, said("a"), NEXT]).program == first.program


def test_a_rewritten_history_is_known_by_the_answer_that_stands_in_it() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST)
    summary = "The old parser was read. It has three versions of the format, and a bug in comments."
    traffic.call([*TASK, said(FIRST), ("user", "Summarise.")], summary)
    found = traffic.ask([("user", f"This goes on from an earlier session.\n{summary}\nGo on.")])
    assert (found.program, found.way) == (one.program, "answer_inside")


@pytest.mark.parametrize("is_plan", [False, True])
def test_a_sub_agent_is_known_by_its_task(is_plan: bool) -> None:
    traffic = Traffic()
    tasks = [
        f"Search the archive for files of version {number}, and list their fields." for number in range(3)
    ]
    plan = "\n".join(f"{number}. {task}" for number, task in enumerate(tasks))
    one = traffic.call(TASK, *([f"My plan is this:\n{plan}"] if is_plan else ["I ask others.", *tasks]))
    for task in tasks:
        assert traffic.ask([("user", task)]).told_as == one.program


def test_a_text_that_everybody_generates_joins_nobody() -> None:
    traffic = Traffic()
    for number in range(4):
        traffic.call([("user", f"task {number}")], FIRST)
    assert traffic.ask([("user", f"Look at this: {FIRST} What do you say?")]).way == "opening"


def test_an_answer_that_repeats_its_prompt_does_not_join_others_with_the_same_document() -> None:
    traffic = Traffic()
    document = "The lute came to Europe with the Moors, and lost its frets on the way back to Baghdad."
    traffic.call([("user", f"{document}\nQuote what is said of frets.")], document)
    assert traffic.ask([("user", f"{document}\nWhat is said of Europe?")]).way == "opening"


def test_after_a_doubtful_join_only_the_order_is_that_of_the_other_program() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST)
    found = traffic.call([*TASK, said("The client has changed this answer."), NEXT], OTHER)
    assert (found.confidence, found.told_as) == ("doubtful", one.program)
    assert found.program != one.program
    later = traffic.ask([*TASK, said("The client has changed this answer."), NEXT, said(OTHER), NEXT])
    assert (later.program, later.told_as, later.confidence) == (found.program, one.program, "doubtful")


def test_without_the_texts_of_answers_prompts_are_compared_alone() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, None)
    assert traffic.call([*TASK, said(FIRST), NEXT], None).program == one.program
    assert traffic.call([*TASK, said(FIRST), NEXT, said(OTHER), NEXT], None).program == one.program
    assert traffic.ask(TASK).way == "opening"


@pytest.mark.parametrize("length", [10, 1000, 1024, 1025, 5000])
def test_prompts_that_are_one_text_are_recognised(length: int) -> None:
    traffic = Traffic()
    rng = random.Random(length)
    text = "".join(rng.choices("abcdef ", k=length))
    twin = traffic.call(text, " Another answer to the same text")
    one = traffic.call(text, " What is known of this?")
    assert one.program != twin.program
    assert traffic.ask(f"{text} What is known of this? A little.").program == one.program
    assert traffic.ask(f"{text} Something else.").way == "opening"


def test_an_id_names_a_program_whatever_its_content() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST, name="session:a")
    assert (one.confidence, one.way) == ("certain", "id")
    other = traffic.call(TASK, FIRST, name="session:b")
    assert other.program != one.program
    found = traffic.ask([("user", "A text that nobody has seen.")], name="session:a")
    assert (found.program, found.confidence) == (one.program, "certain")


def test_first_requests_with_an_id_that_run_at_once_are_one_program() -> None:
    traffic = Traffic()
    one, two = (traffic.ask([("user", text)], name="session:a") for text in ("x", "y"))
    assert one.program == two.program
    traffic.fail(one)
    traffic.fail(two)
    assert len(traffic.machine) == 0


def test_a_child_belongs_to_the_program_of_its_parent() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST, name="session:a")
    child = traffic.call([("user", "sub-task")], OTHER, name="session:b", parent="session:a")
    grandchild = traffic.call([("user", "sub-sub-task")], OTHER, name="session:c", parent="session:b")
    assert child.program == grandchild.program == one.program


@pytest.mark.parametrize("is_root_first", [True, False])
def test_a_program_keeps_the_id_of_its_root_however_many_children_its_children_have(
    is_root_first: bool,
) -> None:
    traffic = Traffic()
    root = traffic.call(TASK, FIRST, name="root").program if is_root_first else None
    child = traffic.call(TASK, FIRST, name="child", parent="root").program
    for number in range(20):
        named = traffic.call(TASK, FIRST, name=f"grandchild {number}", parent="child")
        assert named.program == child
    assert traffic.call(TASK, FIRST, name="root").program == child
    assert root in (None, child)


def test_a_stored_answer_names_its_program() -> None:
    traffic = Traffic()
    one = traffic.ask(TASK)
    traffic.answer(one, FIRST, stored="resp_1")
    found = traffic.ask([("user", "And now?")], continues="resp_1")
    assert (found.program, found.confidence) == (one.program, "certain")


def test_a_hint_joins_a_few_openings_and_never_a_whole_app() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST, hint="cache-key:k")
    joined = [traffic.call([("user", f"{number}")], "yes", hint="cache-key:k").told_as for number in range(9)]
    assert joined[0] == one.program
    assert len(set(joined)) > 4


def test_tenants_share_neither_ids_nor_texts() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST, name="session:a")
    prompts: list[list[Turn]] = [[*TASK, said(FIRST), NEXT], [("user", f"Summary: {FIRST}")]]
    for prompt in prompts:
        for ids in ({}, {"name": "session:a"}):
            assert traffic.call(prompt, OTHER, tenant="other", **ids).told_as != one.program


def test_an_end_that_is_claimed_ends_the_claimers_program_alone() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST, name="session:a")
    traffic.call([("user", "x")], "y", tenant="other", name="session:a", is_final=True)
    assert traffic.ask([*TASK, said(FIRST), NEXT]).program == one.program
    last = traffic.call([*TASK, said(FIRST), NEXT], "done", name="session:a", is_final=True)
    assert last.is_last
    assert traffic.ask([*TASK, said(FIRST), NEXT]).program == one.program, "a request of it still runs"
    assert not traffic.ask(TASK, is_final=True).is_last, "it names no program"


def test_the_end_of_a_child_does_not_end_the_program() -> None:
    traffic = Traffic()
    one = traffic.call(TASK, FIRST, name="session:a")
    child = traffic.call([("user", "x")], "y", name="session:b", parent="session:a", is_final=True)
    assert child.program == one.program
    assert not child.is_last
    assert traffic.ask([*TASK, said(FIRST), NEXT], name="session:a").program == one.program


def test_what_fails_leaves_nothing() -> None:
    traffic = Traffic()
    traffic.fail(traffic.ask(TASK, name="session:a"))
    assert len(traffic.machine) == 0
    one = traffic.call(TASK, FIRST)
    traffic.fail(traffic.ask([*TASK, said(FIRST), NEXT]))
    assert traffic.ask([*TASK, said(FIRST), NEXT]).program == one.program


def test_a_client_that_invents_programs_loses_its_own() -> None:
    traffic = Traffic(most_programs=50)
    kept = [
        traffic.call([("user", f"{tenant} {number}")], f"{FIRST} {number}", tenant=tenant).program
        for tenant in ("a", "b")
        for number in range(10)
    ]
    for number in range(500):
        traffic.call([("user", f"{number}")], "no", tenant="hostile", name=f"session:{number}")
    assert len(traffic.machine) < 150
    found = [
        traffic.ask([("user", f"{tenant} {number}"), said(f"{FIRST} {number}"), NEXT], tenant=tenant).program
        for tenant in ("a", "b")
        for number in range(10)
    ]
    assert found == kept


def test_programs_that_run_are_not_forgotten() -> None:
    traffic = Traffic(most_programs=5)
    running = traffic.ask(TASK)
    for number in range(100):
        traffic.call([("user", f"{number}")], f"answer {number}")
    traffic.answer(running, FIRST)
    assert traffic.ask([*TASK, said(FIRST), NEXT]).program == running.program


def test_after_a_restart_a_program_is_known_again_within_a_turn() -> None:
    traffic = Traffic()
    history = [*TASK, said(FIRST), NEXT, said(OTHER), NEXT]
    one = traffic.call(history, "third")
    assert one.way == "opening"
    assert traffic.ask([*history, said("third"), NEXT]).program == one.program


@pytest.mark.parametrize("seed", range(20))
def test_any_traffic_keeps_the_machine_whole(seed: int) -> None:
    """Random traffic of few texts and ids, so that everything collides, with little room."""
    rng = random.Random(seed)
    traffic = Traffic(most_programs=rng.randint(1, 8))
    texts = ["ok", FIRST, OTHER, f"{FIRST}\n{OTHER}\n{FIRST} {OTHER}", "x" * 2000]
    running: list[Recognised] = []
    for _ in range(150):
        if running and rng.random() < 0.5:
            found = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.2:
                traffic.fail(found)
            else:
                given = rng.sample(texts, rng.randint(0, 2))
                traffic.answer(found, rng.choice([None, *texts]), *given, stored=rng.choice(["", "r1"]))
            continue
        turns = [
            (rng.choice(("user", "assistant", "tool")), rng.choice(texts)) for _ in range(rng.randint(1, 6))
        ]
        prompt = rng.choice([turns, turns[:2], "".join(text for _, text in turns), None])
        ids = {
            "name": rng.choice(["", "", "session:a", "session:b"]),
            "parent": rng.choice(["", "", "session:a"]),
            "hint": rng.choice(["", "cache-key:k"]),
            "continues": rng.choice(["", "r1"]),
            "is_final": rng.random() < 0.1,
        }
        running.append(traffic.ask(prompt, rng.choice("tuv"), **ids))
    for found in running:
        traffic.fail(found)


def test_prompts_that_are_made_to_be_slow_are_compared_within_bounds() -> None:
    """Work is counted, not timed: keys that are looked up, and programs whose texts are compared."""
    looked_up = 0

    def count(keys: Iterable[object]) -> None:
        nonlocal looked_up
        looked_up += sum(1 for _ in keys)

    count(ChatPrint("t", [("user", "a"), said("b")] * 20_000).points({}))
    text = TextPrint("t", "a" * 100_000)
    tails = {block: dict.fromkeys(range(1024), 1) for block in text._blocks}
    count(text.points(tails))
    assert looked_up < 5000
    traffic = Traffic()
    rng = random.Random(0)
    answers = ["".join(rng.choices("abcdefgh ", k=120)) for _ in range(200)]
    for answer in answers:
        traffic.machine.answered(
            traffic.machine.arrive(
                AskedProgram("t", ProgramIds(), ChatPrint("t", [("user", answer[-9:])]))
            ).key,
            AnswerTexts(answer, answer),
        )
    found = traffic.machine._programs.with_any([ChatPrint("t", [("user", " ".join(answers))]).anchors], "t")
    assert len(found) == 64


def test_where_searching_is_vain_few_prompts_are_searched_until_one_is_found() -> None:
    """Chats that have nothing to do with each other are not all searched for answers of the others."""
    traffic, rng = Traffic(), random.Random(7)
    traffic.machine = Recogniser(1000, most_vain=20)

    def words() -> str:
        return " ".join("".join(rng.choices("abcdefgh", k=6)) for _ in range(60))

    def step(number: int) -> bool:
        """Let a program of two steps run, of which the second has the first one's answer inside; return
        whether that is noticed.
        """
        first = traffic.call(words(), answer := words())
        second = traffic.call(f"{words()} {answer} {words()}", words())
        return second.told_as == first.program

    assert step(0)
    for _ in range(40):
        traffic.call(words(), words())
    found = [step(number) for number in range(220)]
    begun = found.index(True)
    assert 0 < begun < 200  # one of eight prompts is searched, and as many answers are noted
    assert all(found[begun:])


def test_the_answers_of_known_programs_are_noted_where_searching_is_vain() -> None:
    """A sub-agent is found by the call of an agent that goes on, whatever others ask."""
    traffic, rng = Traffic(), random.Random(8)
    traffic.machine = Recogniser(1000, most_vain=20)
    for _ in range(40):
        traffic.call([("user", str(rng.random()) * 9)], str(rng.random()) * 9)
    agent = traffic.call(TASK, FIRST)
    traffic.call([*TASK, said(FIRST), NEXT], OTHER)
    asked = [traffic.call([("user", OTHER)], None) for _ in range(8)]
    assert [one.told_as == agent.program for one in asked].count(True) > 0


def test_a_program_that_was_forgotten_keeps_no_other_one_alive() -> None:
    tenant = TenantPrograms("t")
    first, gone, last = programs = [RecognisedProgram(number, tenant, 0) for number in range(3)]
    for program in programs:
        tenant.add(program)
    tenant.remove(gone)
    assert [*tenant] == [first, last]
    assert gone.before is None
    assert gone.after is None
