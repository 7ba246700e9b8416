"""Whose turn it is, and who has room: mixtures of programs on simulated servers."""
