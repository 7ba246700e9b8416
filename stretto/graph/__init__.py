"""Graphs of primitives, and the passes that rewrite them.

Internal: it may change with any release.
"""
