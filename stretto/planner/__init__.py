"""Plans for applications of several LLMs on several GPUs.

Internal: it may change with any release.
"""
