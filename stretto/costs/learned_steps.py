"""How long the steps of an LLM instance take, learned from the times of its answers.

A profile predicts seconds, and may be wrong by a factor: it is that of another device, or of none. Two
factors are learned, one for decodes and one for prefills. An answer takes its decodes, each longer by what
runs beside it, and all prefills that are computed meanwhile, its own included:

    seconds = decoding * num_output * (per_output_s + per_neighbour_s * neighbours)
              + prefilling * per_unit_s * tokens prefilled

The factors are those with the least squares of relative errors, over the last answers. As long as there are
few, both are near each other, and near 1.
"""

from __future__ import annotations

from stretto.model.profile import UNKNOWN_LLM, Profile

_FADING = 0.98
"""Factor by which an answer counts less after each further one."""
_ONE, _ALIKE = 0.002, 0.5
"""Weights, in answers, of the beliefs that both factors are 1, and that they are alike."""
_MOST = 64.0
_MOST_ERROR = 4.0
"""An answer that took so many times as long as predicted, or as short, counts as if it had taken that."""
_TRUSTED = 8
"""Answers after which such errors are cut."""


class LearnedSteps:
    """The times of the steps of one LLM instance.

    Attributes:
        per_output_s: seconds of a step of one decode.
        per_neighbour_s: seconds that each further decode adds to it.
        per_token_s: seconds that each token of a prompt adds to it.
    """

    def __init__(self, profile: Profile) -> None:
        self._output_s = profile.per_output_s or UNKNOWN_LLM.per_output_s
        self._neighbour_s = profile.per_neighbour_s
        self._token_s = profile.per_unit_s or UNKNOWN_LLM.per_unit_s
        self._decodes = self._both = self._prefills = 0.0  # sums of products, over the answers
        self._by_decodes = self._by_prefills = 0.0
        self._num = 0
        self._solve()

    def answered(self, seconds: float, num_output: int, neighbours: float, num_prefilled: float) -> None:
        """Learn from an answer.

        Args:
            seconds: time between the request at the instance and the end of its answer.
            neighbours: mean number of other requests that ran there meanwhile.
            num_prefilled: tokens of prompts that were computed there meanwhile, those of its own included.
        """
        decode_s = num_output * (self._output_s + self._neighbour_s * neighbours)
        prefill_s = self._token_s * num_prefilled
        if seconds <= 0.0 or decode_s + prefill_s <= 0.0:
            return
        if self._num >= _TRUSTED:
            expected_s = self._decoding * decode_s + self._prefilling * prefill_s
            seconds = min(_MOST_ERROR * expected_s, max(expected_s / _MOST_ERROR, seconds))
        x, y = decode_s / seconds, prefill_s / seconds
        self._decodes = _FADING * self._decodes + x * x
        self._both = _FADING * self._both + x * y
        self._prefills = _FADING * self._prefills + y * y
        self._by_decodes = _FADING * self._by_decodes + x
        self._by_prefills = _FADING * self._by_prefills + y
        self._num += 1
        self._solve()

    def _solve(self) -> None:
        a, b = self._decodes + _ONE + _ALIKE, self._both - _ALIKE
        d = self._prefills + _ONE + _ALIKE
        u, v = self._by_decodes + _ONE, self._by_prefills + _ONE
        determinant = a * d - b * b
        decoding, prefilling = (d * u - b * v) / determinant, (a * v - b * u) / determinant
        self._decoding = min(_MOST, max(1 / _MOST, decoding))
        self._prefilling = min(_MOST, max(1 / _MOST, prefilling))
        self.per_output_s = self._decoding * self._output_s
        self.per_neighbour_s = self._decoding * self._neighbour_s
        self.per_token_s = self._prefilling * self._token_s
