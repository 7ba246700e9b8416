"""The tables of `moved.py`: modules, classes and functions by the paths and names of the release before."""

from __future__ import annotations

_SCHED = {
    "queries": (
        "attempts demand gathering graph_scheduler live_graph node_state one_call outcome prepare "
        "request results session shown_text splicing streams task_groups"
    ),
    "engines": "batch_scheduler",
    "llm": (
        "bound_requests expected_outputs handed_over place_early place_late "
        "placement_requests placing prefills_ahead reuse_forecasts run_apart "
        "running_request shared_context shown_parts"
    ),
}
"""Modules that stood in `sched/`, by the folder in which they are now."""
_ACTIONS = "StartBatch Admit Reprioritise CancelTask Release Retain WakeAt Emit Settled Reply Action"
_EVENTS = (
    "BatchDone BatchFailed LLMReport AddInstance Drain InstanceReady InstanceSuspected InstanceLost "
    "InstanceStopped Suspended AllSuspended"
)
"""Messages that stood in `sched/messages.py`."""
MOVED = {
    "frontend": "apps",
    "components": "apps.components",
    "agent_traces": "trace.agents",
    "asgi_port": "http.server",
    "cluster.classes_aboard": "cluster.class_loads",
    "cluster.devices": "model.devices",
    "cluster.together": "cluster.group_locations",
    "components.tools": "model.tools",
    "core": "model.values",
    "costs.profile": "model.profile",
    "deployment": "model.deployment",
    "emulate.batch_metrics": "emulate.replica_metrics",
    "emulate.http": "emulate.response_bytes",
    "emulate.known_costs": "costs.known_costs",
    "emulate.process_age": "emulate.serve",
    "engines.http_client": "http.client",
    "engines.openai_server.held_prefixes": "engines.openai_server.held_blocks",
    "engines.openai_wire": "wire",
    "engines_file": "schema",
    "errors": "model.errors",
    "frontend.choices": "apps.components.choices",
    "frontend.component": "apps.components.component",
    "frontend.plan_cache": "apps.plan_cache",
    "frontend.prompts": "apps.components.prompt_segments",
    "frontend.template": "apps.template",
    "interrupts": "http.signals",
    "llm.cache.block_tables": "llm.block_tables",
    "messages": "sched.messages",
    "models": "engines.models",
    "nearest_name": "model.nearest_name",
    "observer": "sched.observer",
    "planner.running.beside": "planner.running.offline_job",
    "planner.running.call_graphs": "graph.one_call",
    "planner.running.carrier": "planner.running.plan_executor",
    "record": "model.record",
    "references": "model.references",
    "router.client_connection": "http.connection",
    "router.desk": "router.router_state",
    "router.fenced_placement": "router.fallback_placement",
    "router.held_file": "router.held_blocks_file",
    "router.reported_caches": "router.held_blocks",
    "router.request_reader": "http.request_reader",
    "runtime.pace": "runtime.running_queries",
    "sched.engine_instances": "sched.engines.instances",
    "sched.engine_queue": "sched.engines.queue",
    "sched.llm_loads": "sched.llm.loads",
    "sched.llm_scheduler": "sched.llm.scheduler",
    "sched.values": "sched.queries.live_values",
    "service.http_server": "http.server",
    "service.routes": "http.routes",
    "sorted_queue": "model.sorted_queue",
    "tasks": "model.tasks",
    "vocabulary": "sched.vocabulary",
    "runtime.instances.mailbox": "runtime.instances.thread",
    "engines.written": "engines.transformer.running_task",
    "sched.last_heard": "sched.llm.running_requests",
    "sched.reuse_times": "sched.llm.reuse_forecasts",
    "engines.batch.packed_linear": "engines.packed_matrix",
    "engines.prompt_spaces": "cluster.prompt_keys",
    "sched.batch_tokens": "sched.engines.batch_filling",
    **{f"sched.{one}": f"sched.{to}.{one}" for to, names in _SCHED.items() for one in names.split()},
}
"""The new path of each module or folder that was moved, by its old one, both below the package."""
RENAMED: dict[str, dict[str, str]] = {
    "stretto.apps.components.rag": {
        name: f"stretto.apps.components.synthesis:{name}" for name in ("MODES", "Synthesis")
    },
    "stretto.cluster.class_loads": {"Aboard": "ClassLoad", "ClassesAboard": "ClassLoads"},
    "stretto.cluster.group_locations": {"Together": "GroupLocations"},
    "stretto.cluster.prefix_index": {"Held": "stretto.cluster.index_members:HeldTokens"},
    "stretto.cluster.prefix_tree": {"Run": "stretto.cluster.prefix_runs:IndexRun"},
    "stretto.cluster.placement": {
        name: f"stretto.cluster.placement_request:{name}" for name in ("PromptKey", "Purpose")
    },
    "stretto.costs.length_belief": {"interval": "likely_interval"},
    "stretto.costs.loading": {"Start": "StartTimes"},
    "stretto.costs.step": {"Kernels": "stretto.costs.step_features:Kernels"},
    "stretto.costs.steps_file": {"checked": "checked_step", "measured": "measured_step"},
    "stretto.emulate.app": {"App": "EmulatedApp"},
    "stretto.emulate.faults": {"Fault": "ServerFault"},
    "stretto.emulate.generate": {"Generation": "EmulatedGeneration"},
    "stretto.emulate.response_bytes": {
        "Exchange": "stretto.http.request:HttpRequest",
        "Outbox": "ResponseBytes",
    },
    "stretto.emulate.served_model": {"ServedModel": "EmulatedModel"},
    "stretto.emulate.model_tokens": {"ModelTokens": "EmulatedTokens"},
    "stretto.engines.batch.applications": {"Application": "OpApplication"},
    "stretto.engines.batch.embedding": {
        name: f"stretto.engines.batch.local_models:{name}"
        for name in ("loading_model", "minilm_path", "model_file", "model_name")
    },
    "stretto.engines.batch.vectors": {"Shelves": "Collections", "shelf_key": "collection_key"},
    "stretto.engines.catalogue": {
        **{name: f"stretto.engines.llms:{name}" for name in ("DEFAULT_LLM", "FOR_SERVERS", "STAND_IN")},
        **{
            name: f"stretto.engines.llms:{name}"
            for name in ("llm_deployment", "llm_replica", "server_replica")
        },
        **{name: f"stretto.engines.profiles:{name}" for name in ("engine_and_model", "profile_key")},
    },
    "stretto.engines.decoding": {"changed": "changed_settings"},
    "stretto.engines.openai_server.held_blocks": {"HeldPrefixes": "HeldByServer"},
    "stretto.engines.openai_server.places": {"Place": "ServerSlot"},
    "stretto.engines.server_process.programs": {"Program": "ServerProgram"},
    "stretto.graph.compile": {
        "Tables": "stretto.graph.execution_graph:ConnectionTables",
        "rebase": "stretto.graph.execution_graph:rebase",
    },
    "stretto.graph.one_call": {"inputs_of": "inputs_of_call"},
    "stretto.graph.op_table": {"begins_with_word": "stretto.graph.control_ops:begins_with_word"},
    "stretto.graph.ops": {"OPS": "stretto.graph.op_table:OPS"},
    "stretto.graph.passes.parts": {"Part": "StepPart"},
    "stretto.graph.passes.steps": {"Step": "PredictedStep"},
    "stretto.http.client.address": {"check_port": "check_port_number"},
    "stretto.http.client.client": {"Answer": "HttpAnswer", "Client": "HttpClient"},
    "stretto.http.connection": {"Application": "stretto.http.served:HttpApplication"},
    "stretto.http.server": {"AsgiPort": "HttpServer"},
    "stretto.llm.cache.tree": {"PrefixTree": "CacheTree"},
    "stretto.llm.output.output": {"Output": "DecodeOutput"},
    "stretto.model.deployment": {name: f"stretto.model.replica:{name}" for name in ("Contract", "RunsIn")},
    "stretto.model.references": {"Source": "ValueMemory", "load": "load_references"},
    "stretto.planner.application": {"Node": "ModelNode", "Request": "AppRequest"},
    "stretto.planner.execute": {"Span": "ReplicaSpan"},
    "stretto.planner.given_machine": {"read_machine": "read_machine_file"},
    "stretto.planner.machine": {"Machine": "PlanMachine"},
    "stretto.planner.running.calls": {"Answer": "CallAnswer", "Call": "PlannedCall", "Ended": "CallEnded"},
    "stretto.planner.running.drive": {"Run": "DrivenRun"},
    "stretto.planner.running.plan_executor": {
        "CarrierAction": "ExecutorAction",
        "Drain": "DrainReplica",
        "Placed": "PlacedReplica",
        "PlanCarrier": "PlanExecutor",
    },
    "stretto.planner.running.run": {"Job": "PlanJob", "Outcome": "RunOutcome"},
    "stretto.planner.running.run_request": {"Message": "PromptMessage"},
    "stretto.programs.fragment": {"Call": "WaitingCall"},
    "stretto.programs.prompt_text": {"Place": "PromptSlot"},
    "stretto.router.believable": {"usage": "usage_of"},
    "stretto.router.exchange": {"Exchange": "RoutedExchange"},
    "stretto.router.fallback_placement": {"FencedPlacement": "FallbackPlacement"},
    "stretto.router.held_blocks": {"ReportedCaches": "HeldByWorkers"},
    "stretto.router.held_blocks_file": {"HeldFile": "HeldBlocksFile"},
    "stretto.router.loads": {"Loads": "WorkerLoads", "Running": "RunningAtWorker"},
    "stretto.router.messages": {"DeskAction": "RouterAction", "Usage": "WorkerUsage"},
    "stretto.router.request_log": {"Journey": "RequestTrace"},
    "stretto.router.router_state": {"Desk": "RouterState"},
    "stretto.runtime.devices": {"Sealed": "LazyPickle", "detect_machine": "detect_devices"},
    "stretto.runtime.instances.process_worker": {"Start": "ProcessStart"},
    "stretto.runtime.instances.ray_values": {"Answer": "RayAnswer"},
    "stretto.runtime.instances.ray_worker": {"Worker": "RayActor"},
    "stretto.runtime.instances.reading": {"Reading": "MessageReading"},
    "stretto.runtime.journal.lines": {"Entry": "JournalEntry"},
    "stretto.runtime.running_queries": {"Pace": "CompletionRate"},
    "stretto.runtime.worker": {"Job": "InstanceJob"},
    "stretto.sched.messages": {
        **{name: f"stretto.sched.actions:{name}" for name in _ACTIONS.split()},
        **{name: f"stretto.sched.engine_events:{name}" for name in _EVENTS.split()},
    },
    "stretto.sched.queries.gathering": {"gather": "gather_inputs"},
    "stretto.sched.queries.live_graph": {"Joined": "JoinedGraph"},
    "stretto.sched.queries.request": {"Entry": "QueueEntry", "Request": "StepRequest"},
    "stretto.sched.queries.session": {"Session": "SessionMachine"},
    "stretto.sched.queries.splicing": {"Links": "ValueLinks"},
    "stretto.sched.vocabulary": {"DEFAULT": "stretto.apps.vocabulary:DEFAULT"},
    "stretto.schema.fields": {"Problem": "stretto.schema.typed:ValueProblem"},
    "stretto.sim.replay": {"WhatIf": "ReplayChanges"},
    "stretto.trace.agents.load_report": {"LoadReport": "LoadSummary"},
    "stretto.trace.agents.sharing": {"Shared": "SharedParts"},
    "stretto.trace.recorder": {"Part": "SpanPart"},
    "stretto.wire.answers": {"Answer": "ModelAnswer", "Choice": "AnswerChoice"},
    "stretto.wire.fields": {"number": "number_from"},
    "stretto.wire.kv_frames": {"read_batch": "decode_kv_batch"},
    "stretto.wire.requests": {"Message": "ChatMessage"},
}
"""The new names of what was renamed in modules that were moved, by new module and old name. They are written
"module:name" for what went to another module than the rest."""
