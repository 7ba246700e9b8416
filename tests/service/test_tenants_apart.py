"""What tenants of a service find in the caches of a real model: what they computed in earlier sessions, and
nothing of each other, so that their times say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from support.services import served

from stretto import programs as P
from stretto.cli.served_engines import with_usual_engines
from stretto.model.tasks import Done, Usage
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer
from stretto.service.config import ServiceConfig, TenantConfig

pytest_plugins = ("support.llm_fixtures",)

TENANTS = (TenantConfig(name="one", keys=("key-1",)), TenantConfig(name="two", keys=("key-2",)))


@P.SemanticFunction(max_tokens=4)
def told(topic: P.SemanticVariable) -> None:
    """A long enough beginning, of more than a few blocks of tokens, for a person who has never heard of it
    and wants to hear of it now, in simple words, on the topic of {{topic}}: {{output:story}}"""


@dataclass
class Counts(Observer):
    """The token counts of requests that have generated text."""

    found: list[Usage] = field(default_factory=list)

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case LLMReport(event=Done(value=str(), usage=usage)):
                self.found.append(usage)


def test_what_one_tenant_has_computed_makes_no_request_of_another_shorter(tiny_checkpoint: Path) -> None:
    counts = Counts()
    engines = with_usual_engines([], [str(tiny_checkpoint)], None, None)
    config = ServiceConfig(port=0, tenant=TENANTS)
    with served(engines, config, observers=[counts]) as (_, url):
        stories = []
        for key in ("key-1", "key-2", "key-1", "key-2"):
            with P.Client(url, api_key=key):
                stories.append(told("fugues").get(timeout_s=60))
    cached = [usage.num_cached_tokens for usage in counts.found]
    assert cached[:2] == [0, 0]
    assert cached[2] == cached[3] > 50
    assert len(set(stories)) == 1
