"""Evaluation of the Teola paper (§7) in virtual time, with its baselines and one more."""
