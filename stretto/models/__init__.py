"""Checkpoints that ship with Stretto, in Hugging Face layout. Each has its own README: the model card."""

from pathlib import Path

MINI = Path(__file__).parent / "mini"
