"""Sizes of models whose step times were not measured, from their public `config.json`."""

from __future__ import annotations

from stretto.costs.shape import LLMModel

KNOWN_MODELS = {
    model.name: model
    for model in (
        LLMModel("Llama-2-70b-chat-hf", 80, 8192, 64, 8, 28672, 32000, max_context_tokens=4096),
        LLMModel("WizardLM-13B-V1.2", 40, 5120, 40, 40, 13824, 32000, max_context_tokens=4096),
        LLMModel("CodeLlama-34b-Instruct-hf", 48, 8192, 64, 8, 22016, 32016, max_context_tokens=16384),
        LLMModel("Mistral-7B-Instruct-v0.2", 32, 4096, 32, 8, 14336, 32000, max_context_tokens=32768),
        LLMModel(
            "Mixtral-8x7B-Instruct-v0.1",
            *(32, 4096, 32, 8, 14336, 32000),
            num_experts=8,
            active_experts=2,
            max_context_tokens=32768,
        ),
        LLMModel("koala-13B-HF", 40, 5120, 40, 40, 13824, 32000, max_context_tokens=2048),
        LLMModel(
            "oasst-sft-4-pythia-12b-epoch-3.5",
            *(36, 5120, 40, 40, 20480, 50288),
            gated=False,
            max_context_tokens=2048,
        ),
        LLMModel(
            "stablelm-tuned-alpha-7b",
            *(16, 6144, 48, 48, 24576, 50432),
            gated=False,
            max_context_tokens=4096,
        ),
    )
}
