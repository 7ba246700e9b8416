"""What an emulated LLM server answers at SGLang's own paths, beside those of OpenAI's API.

Source: SGLang 0.5, `entrypoints/http_server.py`.
"""

from __future__ import annotations

from stretto.emulate.app import HandlerTable
from stretto.emulate.llm_routes import LLMRoutes
from stretto.emulate.sglang_writer import SGLangWriter, read_generate
from stretto.http.request import HttpRequest
from stretto.wire.fields import read_body

VERSION = "0.5.6"
"""Version of SGLang whose answers are given."""


class SGLangRoutes:
    """The handlers of an emulated SGLang server by path: its own, and those of OpenAI's API.

    Args:
        llm: handlers of OpenAI's API.
        tensor_parallel: number of its devices.
    """

    def __init__(self, llm: LLMRoutes, tensor_parallel: int) -> None:
        self._llm = llm
        self._tensor_parallel = tensor_parallel
        self.table: HandlerTable = {
            **llm.table,
            ("POST", "generate"): self._generate,
            ("GET", "health_generate"): llm.healthy,
            **{("GET", f"{old}server_info"): self._server_info for old in ("", "get_")},
            **{("GET", f"{old}model_info"): self._model_info for old in ("", "get_")},
            **{(method, "flush_cache"): llm.reset_cache for method in ("GET", "POST")},
        }
        for path in ("reset_prefix_cache", "version", "ping"):
            self.table.pop(("GET", path), None)
            self.table.pop(("POST", path), None)

    async def _generate(self, request: HttpRequest) -> None:
        asked, is_list = read_generate(read_body(await request.body()))
        prepared, number = self._llm.prepare(asked)
        is_list = is_list or asked.options.n > 1
        await self._llm.run(request, prepared, SGLangWriter(prepared, number, is_list=is_list))

    async def _model_info(self, request: HttpRequest) -> None:
        root = self._llm.served.root
        await request.answer_json(
            {
                "model_path": root,
                "tokenizer_path": root,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
            }
        )

    async def _server_info(self, request: HttpRequest) -> None:
        served, config = self._llm.served, self._llm.replica.model.scheduler
        await request.answer_json(
            {
                "model_path": served.root,
                "served_model_name": served.name,
                "tp_size": self._tensor_parallel,
                "context_length": served.max_tokens,
                "page_size": config.block_tokens,
                "max_running_requests": config.max_running,
                "max_total_num_tokens": config.num_blocks * config.block_tokens,
                "chunked_prefill_size": config.max_batch_tokens,
                "disable_radix_cache": not self._llm.replica.model.caches,
                "internal_states": [{"num_running_reqs": len(self._llm.replica.scheduler.running)}],
                "version": VERSION,
            }
        )
