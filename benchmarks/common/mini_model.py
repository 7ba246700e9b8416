"""A small trained language model in Hugging Face layout, for tests and measurements alone.

The README beside it is its card.
"""

from pathlib import Path

MINI = Path(__file__).parent / "mini"
EOS = "<|end|>"
"""Text of its token that ends an answer."""
