"""Teola's evaluation (§7) in virtual time, with its baselines and one more."""
