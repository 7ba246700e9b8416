"""The command line.

Internal: it may change with any release.
"""
