"""Parsers of Office files, each a thin adapter of a library of the extra `office`."""
