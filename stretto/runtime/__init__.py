"""The driver in real time: it carries out what the schedulers decide, with real engines.

Internal: it may change with any release.
"""
