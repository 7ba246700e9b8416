"""Traces of agents: formats, plans, loads and reports."""
