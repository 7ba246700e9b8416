"""Makes questions from sentences, and search queries from questions.

A made question has some of the sentence's content words, in order, after a question word that fits the words
left out; or it is a list of keywords. Then some words are inflected, misspelt or dropped.
"""

from __future__ import annotations

import json
import re
from random import Random

STOP_WORDS = frozenset(
    """a about after all also am an and any are as at be because been before being between both but by can
    could did do does doing during each for from get had has have having he her here him his how however i if
    in into is it its itself just made make many may me might more most much must my no nor not of off on once
    one only or other our out over own per please said same say says shall she should so some such take tell
    than that the their them then there these they this those through to too under until up upon us use used
    uses using very was we were what when where whether which while who whom whose why will with would yet you
    your""".split()  # noqa: SIM905
)
MAX_KEYWORDS = 10
_WORD = re.compile(r"[^\W_][\w'’.-]*[^\W_]|[^\W_]|\$[\d,.]*\d")
_AUXILIARIES = ("is", "was", "did", "does", "do", "are", "were", "has", "had", "can", "will", "would")
_TEMPLATES = ("about {}", "{} meaning", "{} example", "{} details", "what is {}", "{} facts")
_SYNONYMS = {
    "began": "started",
    "begin": "start",
    "start": "begin",
    "started": "began",
    "big": "large",
    "large": "big",
    "build": "construct",
    "built": "constructed",
    "created": "founded",
    "founded": "established",
    "established": "founded",
    "film": "movie",
    "movie": "film",
    "wrote": "authored",
    "author": "writer",
    "writer": "author",
    "died": "death",
    "born": "birth",
    "located": "found",
    "important": "significant",
    "ended": "finished",
    "child": "kid",
    "children": "kids",
    "house": "home",
    "quickly": "fast",
    "purchase": "buy",
    "purchased": "bought",
    "revenue": "sales",
    "revenues": "sales",
    "increase": "growth",
    "increased": "grew",
    "decreased": "fell",
    "company": "firm",
    "function": "method",
    "method": "function",
    "argument": "parameter",
    "returns": "gives",
    "allows": "lets",
    "proposed": "suggested",
    "people": "persons",
    "called": "named",
    "named": "called",
    "city": "town",
    "won": "win",
    "home": "house",
}


def words_of(text: str) -> list[str]:
    """Words of a text, without punctuation around them."""
    return _WORD.findall(text)


def is_content(word: str) -> bool:
    """Whether a word is not a stop word."""
    return word.casefold() not in STOP_WORDS


def content_words(text: str) -> list[str]:
    """Content words of a text, in order."""
    return [word for word in words_of(text) if is_content(word)]


def make_question(sentence: str, rng: Random) -> str:
    """Make a question that `sentence` more or less answers."""
    if rng.random() < 0.18:
        return _noisy(_keywords(sentence, rng), rng, 0.15)
    text = _clause_question(sentence, rng)
    text = _noisy(text, rng, 0.22)
    if rng.random() < 0.12:
        text = text.lower()
    return text if text.endswith("?") or rng.random() < 0.1 else text + "?"


def _keywords(sentence: str, rng: Random) -> str:
    words = content_words(sentence)
    kept = rng.sample(words, min(len(words), rng.randint(2, 6)))
    if rng.random() < 0.5:
        kept.sort(key=words.index)
    return " ".join(kept)


def _clause_question(sentence: str, rng: Random) -> str:
    """Make a question of a part of the sentence with a gap, after the question word that fits the gap."""
    words = words_of(sentence)
    width = rng.randint(5, 16)
    start = rng.randrange(max(1, len(words) - width + 1))
    window = words[start : start + width]
    places = [n for n, word in enumerate(window) if is_content(word)]
    if len(places) < 3:
        window, places = words, [n for n, word in enumerate(words) if is_content(word)]
    numbers = [n for n in places if window[n][:1].isdigit() or window[n][:1] == "$"]
    names = [n for n in places if window[n][:1].isupper() and (n or start)]
    pool = numbers if numbers and rng.random() < 0.5 else names if names and rng.random() < 0.5 else places
    first = last = rng.choice(pool)
    asks_name = pool is names or window[first][:1].isupper()
    while last + 1 < len(window) and window[last + 1][:1].isupper() and asks_name:
        last += 1
    while first and window[first - 1][:1].isupper() and asks_name:
        first -= 1
    rest = [*window[:first], *window[last + 1 :]]
    kept = [word for word in rest if rng.random() < (0.86 if is_content(word) else 0.6)]
    if sum(map(is_content, kept)) < 2:
        kept = [word for word in rest if is_content(word)]
    if kept and start == 0 and first > 0 and not window[0].isupper() and not is_content(window[0]):
        kept = [kept[0].lower(), *kept[1:]]
    if rng.random() < 0.12:
        half = len(kept) // 2
        kept = kept[half:] + kept[:half]
    opening = _question_words(window[first], pool is numbers, pool is names, rng)
    auxiliary = [rng.choice(_AUXILIARIES)] if rng.random() < 0.6 else []
    return " ".join([*opening, *auxiliary, *kept])


def _question_words(hole: str, is_number: bool, is_name: bool, rng: Random) -> list[str]:
    options: tuple[str, ...]
    if is_number:
        if re.fullmatch(r"1\d{3}|20\d\d", hole):
            options = ("When", "In what year", "What year", "When")
        else:
            options = ("How many", "How much", "What number of", "How long")
    elif is_name:
        options = ("Who", "What", "Which", "Where", "Who", "What is the name of")
    else:
        options = ("What", "What", "What", "How", "Why", "Which", "Where", "What kind of", "What type of")
    return rng.choice(options).split()


def _noisy(text: str, rng: Random, rate: float) -> str:
    return " ".join(_changed(word, rng) if rng.random() < rate else word for word in text.split())


def _changed(word: str, rng: Random) -> str:
    """Change a word: a synonym, another ending, another case, or a typo."""
    lower = word.lower()
    if lower in _SYNONYMS:
        return _SYNONYMS[lower]
    if not is_content(word) or not word.isalpha():
        return word
    kind = rng.random()
    if kind < 0.55 and not word[0].isupper():
        for ending in ("ing", "ed", "es", "s", "ly"):
            if word.endswith(ending) and len(word) > len(ending) + 3:
                return word[: -len(ending)]
        return word + rng.choice(("s", "ed", "ing"))
    if kind < 0.75:
        return lower
    if len(word) > 4:
        place = rng.randrange(1, len(word) - 2)
        swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
        return swapped if rng.random() < 0.5 else word[:place] + word[place + 1 :]
    return word


def rewrite(question: str, num_queries: int) -> str:
    """Make the JSON list of search queries that is the right answer to `expand`; deterministic.

    The queries are keywords, the question without its question words, keywords in another order, then
    templates.
    """
    words = words_of(question)
    keywords = [word for word in words if is_content(word)][:MAX_KEYWORDS] or words[:MAX_KEYWORDS]
    first = next((n for n, word in enumerate(words) if is_content(word)), 0)
    plain = " ".join(keywords)
    bare = " ".join(words[first : first + 2 * MAX_KEYWORDS])
    turned = " ".join([*keywords[1:], *keywords[:1]])
    chosen: list[str] = []
    for variant in (plain, bare, turned, *(template.format(plain) for template in _TEMPLATES)):
        if variant not in chosen:
            chosen.append(variant)
    return json.dumps(chosen[:num_queries], ensure_ascii=False)
