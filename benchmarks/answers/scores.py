"""Scores of an answer beside known ones: whether it contains them, and token F1.

Source: the evaluation of SQuAD (Rajpurkar et al. 2016): small letters, no punctuation, no articles. Differs:
an answer counts as right if the known one stands in it as whole words; of several known answers (the parts
of a list), all must.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation + "“”‘’–—")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def words(text: str) -> list[str]:
    """Return the words of a text by which answers are compared."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def contains(text: str, known: Sequence[str]) -> bool:
    """Return whether each known answer stands in the text as a run of whole words."""
    spelled = f" {' '.join(words(text))} "
    return all(f" {' '.join(words(answer))} " in spelled for answer in known)


def token_f1(text: str, known: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall of the text's words, from 0 to 1."""
    found, wanted = words(text), words(" ".join(known))
    shared = (Counter(found) & Counter(wanted)).total()
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0
