"""Parsers of files. A parsed document is text in sections, ready to be cut into chunks.

Internal: it may change with any release.
"""

from stretto.documents.load import load_documents
from stretto.documents.parser_process import ParseLimits

__all__ = ["ParseLimits", "load_documents"]
