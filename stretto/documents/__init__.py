"""Parsers of files. A parsed document is text in sections, ready to be cut into chunks."""

from stretto.documents.load import load_documents

__all__ = ["load_documents"]
