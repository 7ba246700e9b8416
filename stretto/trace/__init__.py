"""Records of what ran when, their pages, and traces of agents.

Internal: it may change with any release.
"""
