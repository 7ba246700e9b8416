"""Finds programs whose prompts change before text that stays, so that caches are of no use to them."""
