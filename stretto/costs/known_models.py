"""Sizes of models whose step times were not measured, from their public `config.json`."""

from __future__ import annotations

from stretto.costs.shape import LLMModel

_BY_VOCABULARY = {
    (128256, 131072): {
        "Llama-3.1-8B-Instruct": (32, 4096, 32, 8, 14336, 128),
        "Llama-3.1-70B-Instruct": (80, 8192, 64, 8, 28672, 128),
        "Llama-3.2-1B-Instruct": (16, 2048, 32, 8, 8192, 64),
        "Llama-3.2-3B-Instruct": (28, 3072, 24, 8, 8192, 128),
        "Llama-3.3-70B-Instruct": (80, 8192, 64, 8, 28672, 128),
        "DeepSeek-R1-Distill-Llama-8B": (32, 4096, 32, 8, 14336, 128),
        "DeepSeek-R1-Distill-Llama-70B": (80, 8192, 64, 8, 28672, 128),
    },
    (151936, 40960): {
        "Qwen3-0.6B": (28, 1024, 16, 8, 3072, 128),
        "Qwen3-1.7B": (28, 2048, 16, 8, 6144, 128),
        "Qwen3-4B": (36, 2560, 32, 8, 9728, 128),
        "Qwen3-8B": (36, 4096, 32, 8, 12288, 128),
        "Qwen3-14B": (40, 5120, 40, 8, 17408, 128),
        "Qwen3-32B": (64, 5120, 64, 8, 25600, 128),
    },
    (152064, 131072): {
        "DeepSeek-R1-Distill-Qwen-7B": (28, 3584, 28, 4, 18944, 128),
        "DeepSeek-R1-Distill-Qwen-14B": (48, 5120, 40, 8, 13824, 128),
        "DeepSeek-R1-Distill-Qwen-32B": (64, 5120, 40, 8, 27648, 128),
    },
    (131072, 32768): {"Mistral-Small-24B-Instruct-2501": (40, 5120, 32, 8, 32768, 128)},
    (100352, 16384): {"phi-4": (40, 5120, 40, 10, 17920, 128)},
}
"""Models by the size of their vocabulary and their longest context: layers, hidden size, heads, KV heads,
inner size and head size of each.
"""

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
        *(
            LLMModel(name, *sizes[:5], vocab_size, sizes[5], max_context_tokens=longest)
            for (vocab_size, longest), models in _BY_VOCABULARY.items()
            for name, sizes in models.items()
        ),
        *(
            LLMModel(
                *(name, layers, hidden, heads, 4, inner, 151936, 128),
                num_experts=128,
                active_experts=8,
                max_context_tokens=40960,
            )
            for name, layers, hidden, heads, inner in (
                ("Qwen3-30B-A3B", 48, 2048, 32, 768),
                ("Qwen3-235B-A22B", 94, 4096, 64, 1536),
            )
        ),
    )
}
