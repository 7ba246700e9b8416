"""An op of LLMs that somebody might add: all that belongs to it is here."""

from __future__ import annotations

from collections.abc import Mapping

from stretto import DEFAULT, Component, Input, Template
from stretto.apps.components.builder import Builder
from stretto.graph.graph import Arg, Constant, Ref, Slot
from stretto.graph.op_table import generated_type
from stretto.graph.ops import OpSpec, Port

PLAN = OpSpec("plan", (Port("kv", "kv"),), generated_type, runs_on="llm", makes_text=True)


class Planning(Component):
    """Let an LLM write down the steps to a goal, each of which is handed on as soon as it is there."""

    ports = (Port("goal", "text"),)
    outs = {"steps": "list[text]"}  # noqa: RUF012

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        prompt = (Constant("Steps to this goal, as a JSON list:\n"), Slot("goal"))
        kv = build.add("read", "prefill", (build.take("goal"),), prompt=prompt, engine="llm")
        steps = build.add(
            "steps",
            PLAN.name,
            (Arg("kv", kv),),
            config={"items": "json_list"},
            engine="llm",
            hints=("splittable",),
        )
        return {"steps": steps}


vocabulary = DEFAULT.with_op(PLAN)
planning = Planning(goal=Input("goal", "text"))
app = Template("plan", planning, {"steps": planning["steps"]}, vocabulary)
