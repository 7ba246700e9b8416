"""The vocabulary that Stretto comes with, the expansions of the ready-made components included."""

from __future__ import annotations

from stretto.apps.components.agent import AGENT, agent_turn
from stretto.apps.components.ask_again import ASK_AGAIN, ask_again
from stretto.apps.components.map_reduce import REDUCE, reduce_tree
from stretto.sched.vocabulary import Vocabulary

DEFAULT = Vocabulary(expansions={REDUCE: reduce_tree, AGENT: agent_turn, ASK_AGAIN: ask_again})
"""The vocabulary of a template or a runtime that is given no other."""
