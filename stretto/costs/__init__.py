"""Predicted seconds of steps, batches and loads.

Internal: it may change with any release.
"""
