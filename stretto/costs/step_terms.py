"""The terms of a step's time, and the names of the fitted numbers that are their factors."""

from __future__ import annotations

from typing import NamedTuple


class StepTerms(NamedTuple):
    """The predicted seconds of an LLM step, split by cause; their sum is the step's time.

    Attributes:
        launch: time by which launching exceeds the work of the device.
        longest: time by which the longest sequence exceeds the reading of all KV.
    """

    launch: float
    weights: float
    matrix: float
    all_reduce: float
    prefill_attention: float
    kv: float
    longest: float
    preparation: float
    sampling: float
    host: float


# Names of the fitted numbers, grouped by term.
LAUNCH = ("launch", "prefill_launch", "kernel_launch", "prefill_kernel_launch")
WEIGHTS = ("weights",)
MATRIX = ("matrix_128", "matrix_256", "tiles", "stairs", "activations", "elementwise", "kernel_gaps")
ALL_REDUCE = ("all_reduce_start", "all_reduce", "all_reduce_links")
PREFILL_ATTENTION = ("prefill_blocks", "prefill_pairs")
KV = ("blocks", "partitions", "kv")
LONGEST = ("longest",)
PREPARATION = ("preparation", "preparation_sequence", "preparation_token", "preparation_group")
SAMPLING = (*("sampling", "sampling_sequence", "sampling_beyond", "sampling_words", "sampling_weights"),)
HOST = ("host", "host_sequence", "host_group", "stalls")
TERMS = (
    *(LAUNCH, WEIGHTS, MATRIX, ALL_REDUCE, PREFILL_ATTENTION, KV, LONGEST),
    *(PREPARATION, SAMPLING, HOST),
)
NUMBERS = tuple(name for term in TERMS for name in term)
BY_DEVICES = ("launch", "prefill_launch", "matrix_128", "activations", "all_reduce")
"""Numbers that fit one number of devices only."""
FOR_ALL = (
    *("kernel_launch", "prefill_kernel_launch", "tiles", "stairs", "elementwise", "kernel_gaps"),
    *("all_reduce_links", "preparation_group", "sampling_beyond", "sampling_words", "sampling_weights"),
    *("host_sequence", "host_group", "stalls"),
)
"""Numbers that files of earlier fits lack; they are 0 there."""
HIDDEN = 0.5
"""Share of the shorter of reading (`weights`) and multiplying (`tiles`, `stairs`) that the longer hides."""
MULTIPLYING = ("tiles", "stairs")
FEW = 64
"""Number of sequences beyond which sampling is slower."""
