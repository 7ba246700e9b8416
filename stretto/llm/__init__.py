"""The part of an LLM instance that needs no tensors: blocks, prefix cache, local scheduler, output.

Internal: it may change with any release.
"""
