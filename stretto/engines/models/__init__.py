"""Checkpoints that ship with Stretto, in Hugging Face layout. The README of each is its model card."""

from pathlib import Path

MINI = Path(__file__).parent / "mini"
