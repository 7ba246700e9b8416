"""Prompts of the ready-made apps as plain texts, for programs that send text to servers by themselves.

Every contestant of a benchmark is given these, so that all send the same prompts.
"""

from __future__ import annotations

from collections.abc import Mapping

PLAIN_PROMPTS: Mapping[str, str] = {
    "answer": (
        "Answer the question from the context. If the context does not answer it, say so.\n"
        "Question: {question}\nContext: {context}\nAnswer:"
    ),
    "combine": (
        "Combine the drafts into one answer to the question.\nQuestion: {question}\nDrafts: {drafts}\nAnswer:"
    ),
    "expand": (
        "Rewrite the question as {num_queries} search queries that use other words."
        " Answer with a JSON list of strings.\nQuestion: {question}\nJSON:"
    ),
    "refine": (
        "Improve the draft answer with the new context. Keep the draft if the context adds nothing.\n"
        "Question: {question}\nContext: {context}\nDraft: {draft}\nAnswer:"
    ),
    "summarise": "Summarise the text in one or two sentences.\nText: {text}\nSummary:",
}
