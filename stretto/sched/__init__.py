"""Schedulers: state machines without IO that decide which request runs when.

Internal: it may change with any release.
"""
