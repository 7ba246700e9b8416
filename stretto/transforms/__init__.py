"""Transforms: a closed set of functions that make a value of a text, or a text of a value.

They run on texts that anybody may have written: each takes time in proportion to its input, or refuses it.

Internal: it may change with any release.
"""
