"""What a placement policy knows of one instance: its load, its cache, its speed."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.cluster.messages import InstanceId
from stretto.cluster.transitions import State
from stretto.model.profile import Profile


@dataclass(slots=True, eq=False)
class InstanceView:
    """The state of one instance as a placement policy (which chooses the instance of a request) sees it.

    Attributes:
        capacity_tokens: number of tokens, of prompts and expected outputs, that may be in flight there.
        num_slots: number of requests that may run there at once.
        space: name of the tokenizer and block length of its cache. A prompt has one key
            for each such name.
        state: only "serving" and "suspect" instances get work.
        num_running: number of requests that run there.
        num_decoding: number of running requests whose prefill is over.
        running_tokens: number of tokens of the running requests, prompts and expected outputs together. What
            requests of jobs share counts once where the instance reports its cache. So it does in
            `waiting_tokens`.
        repeated_tokens: number of tokens of running prompts that do not count there, because another running
            request has them too.
        prefill_s: predicted seconds of prefills that have not ended, each counted whole until its end.
        prefill_from_s: time from which the oldest of these prefills has been computed.
        expected_output: number of tokens of a typical answer.
        num_offline: number of offline requests that run there. They give way to others, so that they count
            nowhere else.
        offline_tokens: number of their tokens, prompts and expected outputs together.
        offline_beside: most of these tokens while other requests run there; the request that exceeds it is
            the last one. None if the instance itself limits what they do in a step.
        num_waiting: number of requests that wait in this instance's own queue until they fit.
        waiting_tokens: number of tokens of the waiting requests, prompts and expected outputs together.
        waiting_s: predicted seconds by which the waiting requests delay one more.
        waiting_prefill_s: predicted seconds of their prefills, which are a part of that.
        slowness: measured seconds of its last answers over predicted ones, 1 if they hardly differ. Measured
            only where the policy lets requests wait at an instance ("early").
        probe_s: time from which a suspect instance may be tried with a request.
        kept_slots, kept_tokens: places and tokens that are kept free for requests of other schedulers, which
            share the instance and wait.
        per_resident_s: measured seconds that each token in flight adds to a step of decodes; None before
            answers have shown it.
    """

    id: InstanceId
    profile: Profile
    capacity_tokens: int
    num_slots: int = 16
    space: str = ""
    state: State = "serving"
    num_running: int = 0
    num_decoding: int = 0
    running_tokens: int = 0
    repeated_tokens: int = 0
    prefill_s: float = 0.0
    prefill_from_s: float = 0.0
    expected_output: int = 0
    num_offline: int = 0
    offline_tokens: int = 0
    offline_beside: int | None = None
    num_waiting: int = 0
    waiting_tokens: int = 0
    waiting_s: float = 0.0
    waiting_prefill_s: float = 0.0
    slowness: float = 1.0
    probe_s: float = 0.0
    kept_slots: int = 0
    kept_tokens: int = 0
    per_resident_s: float | None = None

    @property
    def room_tokens(self) -> int:
        """Number of tokens that still fit on the instance; 0 when it runs as many requests as it may
        (`num_slots`).
        """
        room = self.capacity_tokens - self.running_tokens - self.kept_tokens
        return room if room > 0 and self.num_running + self.kept_slots < self.num_slots else 0

    @property
    def offline_room_tokens(self) -> int:
        """Number of tokens of offline requests that still fit on the instance beside all that runs or waits
        there; 0 when there are as many requests as it may run, or it is perhaps down.
        """
        has_others = self.num_running > 0 or self.num_waiting > 0
        if has_others and self.offline_beside is not None and self.offline_tokens >= self.offline_beside:
            return 0
        num_requests = self.num_running + self.num_offline + self.num_waiting
        room = self.capacity_tokens - self.running_tokens - self.offline_tokens - self.waiting_tokens
        return room if room > 0 and num_requests < self.num_slots and self.state == "serving" else 0

    def prefill_left_s(self, now_s: float) -> float:
        """Return the predicted seconds of prefills that have not ended, without what is computed by now.

        Prefills are computed one after the other. The oldest is taken to be of mean length.
        """
        num_prefills = self.num_running - self.num_decoding
        if num_prefills < 1:
            return self.prefill_s
        return self.prefill_s - min(max(0.0, now_s - self.prefill_from_s), self.prefill_s / num_prefills)

    @property
    def outstanding_s(self) -> float:
        """Predicted seconds by which the requests that run at the instance delay one more request."""
        return self.prefill_s + self.expected_output * self.profile.per_neighbour_s * self.num_running

    @property
    def turn_s(self) -> float:
        """Predicted seconds until one of the requests that run at the instance ends and makes room; 0 if none
        runs.
        """
        if not self.num_running:
            return 0.0
        return self.expected_output * self.profile.decode_s(self.num_running) / self.num_running

    @property
    def backlog_s(self) -> float:
        """Predicted seconds by which the requests that run or wait at the instance delay one more request.

        Includes the wait until the tokens of that request fit, and the measured slowness of the instance.
        """
        turn_s = 0.0 if self.room_tokens else self.turn_s
        return self.slowness * (self.outstanding_s + self.waiting_s + turn_s)
