"""A planned run in a process of its own, which may be killed at any time. It has two nodes, each a small
model in float32 in a process for itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.common.mini_model import MINI
from stretto.engines.llms import llm_replica
from stretto.graph.one_call import PromptMessage
from stretto.model.replica import Replica
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.running.request_store import stored
from stretto.planner.running.run import PlanJob, run_job
from stretto.planner.running.run_request import RunRequest

APP = Application(
    "pair",
    [ModelNode("writer", str(MINI), 16, calls=2), ModelNode("judge", str(MINI), 8, inputs=("writer",))],
)
REQUESTS = [
    RunRequest(
        AppRequest(f"r{at}", 8),
        (PromptMessage(None, f"Question {at}: what does a scheduler do with step {at}?"),),
    )
    for at in range(24)
]
NUM_CALLS = 3 * len(REQUESTS)
_PLAN = Plan("test", (Stage((PlannedReplica(str(MINI), (0,)), PlannedReplica(str(MINI), (1,)))),))


def main(folder: Path) -> None:
    """Do the run, or go on with it, with its files in a folder."""
    mini = llm_replica(str(MINI))
    replica = Replica(mini.executable, mini.config, runs_in="process", threads=1, num_slots=4)
    out, failed, journal = (folder / name for name in ("out", "failed", "journal"))
    run_job(
        PlanJob(APP, stored(REQUESTS), "mini", lambda book: _PLAN, lambda one: replica, out, failed, journal),
        lambda *_: None,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
