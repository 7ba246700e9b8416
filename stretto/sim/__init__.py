"""The driver in virtual time: the production schedulers, with costs in place of engines.

Internal: it may change with any release.
"""
