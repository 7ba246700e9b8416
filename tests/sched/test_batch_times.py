"""Batch engines whose times depend on lengths: what is predicted of a batch, and how predictions improve."""

from __future__ import annotations

from itertools import count

import pytest
from support.machines import batch_engine, batch_request, serving

from stretto.model.profile import Profile
from stretto.sched.actions import StartBatch
from stretto.sched.engines.batch_scheduler import BatchScheduler

BY_LENGTH = Profile(0.1, 0.2, per_token_s=0.001, unit_tokens=200.0)
LONG = "word " * 200


def scheduler_of(profile: Profile, *texts: object, instances: int = 1) -> BatchScheduler:
    deployment = batch_engine(profile=profile, max_batch=8, instances=instances)
    scheduler = serving(BatchScheduler(deployment.engine, deployment.profile, count(1)), deployment)
    scheduler.add(batch_request("q", "a", list(texts)), 0.0)
    return scheduler


def started(scheduler: BatchScheduler, now_s: float = 0.0) -> StartBatch:
    (action,) = scheduler.schedule(now_s)
    assert isinstance(action, StartBatch)
    return action


def test_a_batch_says_the_tokens_of_its_texts_where_the_profile_depends_on_them() -> None:
    assert started(scheduler_of(BY_LENGTH, LONG, "short")).num_tokens == 251 + 2
    assert started(scheduler_of(Profile(0.1, 0.2), LONG, "short")).num_tokens is None


def test_what_is_no_text_is_left_to_the_engine() -> None:
    assert started(scheduler_of(BY_LENGTH, object(), "short")).num_tokens is None


def test_predictions_learn_from_the_batches_before() -> None:
    scheduler = scheduler_of(BY_LENGTH, "short", instances=2)
    action = started(scheduler)
    predicted_s = BY_LENGTH.batch_s(1, action.num_tokens)
    assert scheduler.idle.prediction(0).batch_s(1, action.num_tokens) == predicted_s
    scheduler.observe(0, action.batch, 1.5 * predicted_s)
    assert scheduler.idle.prediction(0).batch_s(1, action.num_tokens) == pytest.approx(1.5 * predicted_s)
    scheduler.observe(0, action.batch + 1, 99.0)
    scheduler.observe(7, action.batch, 99.0)
    assert scheduler.idle.prediction(0).factor.num_observed == 1, (
        "late answers of batches given up teach nothing"
    )


def test_a_slower_instance_gets_fewer_batches() -> None:
    deployment = batch_engine(profile=Profile(0.0, 0.1), max_batch=1, instances=2)
    scheduler = serving(BatchScheduler(deployment.engine, deployment.profile, count(1)), deployment)
    taken = [0, 0]
    for number in range(60):
        scheduler.add(batch_request(f"q{number}", "a", ["text"]), float(number))
        action = started(scheduler, float(number))
        taken[action.instance] += 1
        scheduler.observe(action.instance, action.batch, number + (0.1 if action.instance == 0 else 0.3))
        scheduler.done(action.instance, action.batch, [["vector"]])
    assert taken[0] == pytest.approx(45, abs=3)
