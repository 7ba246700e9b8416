"""Benchmark of mixtures of programs on simulated servers: whose turn it is, and who has room."""
