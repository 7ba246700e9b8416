"""Load and cache of a server, from the text of its metrics."""

from __future__ import annotations

from time import thread_time

import pytest

from stretto.engines.openai_server.metrics import CacheConfig, ServerLoad, read_cache_config, read_load
from stretto.model.errors import BadReply

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
vllm:cache_config_info{block_size="32",dtype="\\"}",enable_prefix_caching="True",num_gpu_blocks="1365"} 1.0
"""
OLDER = """\
vllm:num_requests_running{model_name="m"} 1
vllm:num_requests_waiting{model_name="m"} 0
"""
SGLANG = "sglang:num_running_reqs 4\nsglang:num_queue_reqs 5\n"


def test_load_of_servers_with_one_engine_or_several() -> None:
    assert read_load(VLLM) == ServerLoad(4, 2)
    assert read_load(OLDER) == ServerLoad(1, 0)
    assert read_load(SGLANG) == ServerLoad(4, 5)


@pytest.mark.parametrize("text", ["", "<html>", "up 1", SGLANG.replace("5", "much")])
def test_metrics_without_a_load_are_a_bad_reply(text: str) -> None:
    with pytest.raises(BadReply):
        read_load(text)


def test_cache_is_what_the_server_says_or_unknown() -> None:
    assert read_cache_config(VLLM) == CacheConfig(32, 1365, True)
    assert read_cache_config(VLLM.replace("True", "False")).is_on is False
    assert read_cache_config(VLLM.replace('"32"', '"None"')).block_tokens == 16
    assert read_cache_config(OLDER) == CacheConfig(16, None, None)
    assert read_cache_config(SGLANG + "sglang:max_total_num_tokens 64000.0\n").num_blocks == 4000


@pytest.mark.parametrize("labels", ["a" * 20_000, 'a="' * 20_000, "a=" * 20_000, '"' * 20_000])
def test_labels_that_are_none_take_no_time(labels: str) -> None:
    """A router reads the metrics of its workers in its event loop."""
    began_s = thread_time()
    assert read_cache_config(f"vllm:cache_config_info{{{labels}}} 1.0") == CacheConfig()
    assert thread_time() - began_s < 5.0
