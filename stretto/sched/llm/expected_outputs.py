"""The expected length of an answer, learned from answers that have ended.

`max_tokens` is a limit, not a prediction: callers set it far above what models write. So budgets, loads and
prices use the mean length of earlier answers of the same step of the same template. There is one object per
engine, because models differ in how much they write.
"""

from __future__ import annotations

from stretto.costs.mean_output import MeanOutput, num_tokens
from stretto.model.tasks import Usage
from stretto.sched.queries.request import StepRequest

_PRIOR = 256
"""Number of tokens expected before any answer of a step has ended.

It is that of a long answer in a conversation (published traces have means of about 200 tokens), rather than
the limit, which may be a whole context.
"""
_MAX_SOURCES = 1024


class ExpectedOutputs:
    """A predictor of the lengths of an LLM's answers: the mean length of earlier answers of the same step of
    the same app.

    If there are too many steps, the mean that was updated longest ago is forgotten.
    """

    def __init__(self) -> None:
        self._means: dict[tuple[str, str, str], MeanOutput] = {}
        self._all = MeanOutput(_PRIOR)

    @property
    def typical(self) -> int:
        """Mean number of tokens of an LLM answer, over all steps of all apps; a fixed guess before any answer
        has ended.
        """
        return self._all.expected

    def expected(self, request: StepRequest) -> int:
        """Return the number of tokens that each item of a request is expected to generate: at most the
        request's own limit, 0 for a prefill.
        """
        decode = request.decode
        if decode is None:
            return 0
        mean = self._means.get(request.source)
        expected = _PRIOR if mean is None else mean.expected or 1
        return expected if expected < decode.max_tokens else decode.max_tokens

    def longest(self, request: StepRequest) -> int:
        """Return the number of tokens of the longest answer of the same step so far, or what is expected if
        none has ended.
        """
        mean = self._means.get(request.source)
        return self.expected(request) if mean is None else mean.longest

    def observe(self, request: StepRequest, num_tokens: int) -> None:
        """Learn from an answer to `request` that has ended after `num_tokens` tokens."""
        if request.decode is None:
            return
        source = request.source
        mean = self._means.pop(source, None) or MeanOutput(_PRIOR)
        mean.observe(num_tokens)
        self._means[source] = mean
        self._all.observe(num_tokens)
        if len(self._means) > _MAX_SOURCES:
            del self._means[next(iter(self._means))]


def num_output_tokens(usage: Usage, value: object) -> int:
    """Return the number of tokens of an answer: what the engine reports, or else an estimate from its
    text.
    """
    if usage.num_output_tokens:
        return usage.num_output_tokens
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return sum(num_tokens(text) for text in texts if isinstance(text, str))
