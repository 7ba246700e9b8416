"""The limits of the queries of deployed apps."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.documents.parser_process import ParseLimits
from stretto.model.number_checks import check_counts, check_positive
from stretto.service.apps.fetching import FetchRules


@dataclass(frozen=True, slots=True, kw_only=True)
class AppLimits:
    """The limits of the queries of deployed apps, the table `[service.apps]` of an engines file.

    Attributes:
        fetch: rules for documents at URLs.
        parse: limits within which one document is parsed.
        max_document_bytes: largest size of a document.
        max_documents: most documents of one input.
        max_text_chars: characters of all inputs of a query together that are texts, such as a question. They
            go whole into prompts, so a query takes some 50 bytes of memory for each.
        num_parsers: number of documents that are parsed at a time. Where there are several tenants, a quarter
            of them, at least one, is left to tenants for whom none is parsed.
        keep_s: seconds for which a query that has ended is kept.
        max_kept: number of ended queries of a tenant that are kept.
        max_kept_bytes: number of bytes of the outputs of a tenant's ended queries that are kept. The last one
            is kept in any case.
    """

    fetch: FetchRules = FetchRules()
    parse: ParseLimits = ParseLimits()
    max_document_bytes: int = 50_000_000
    max_documents: int = 1000
    max_text_chars: int = 1_000_000
    num_parsers: int = 3
    keep_s: float = 600.0
    max_kept: int = 1000
    max_kept_bytes: int = 256_000_000

    def __post_init__(self) -> None:
        check_counts("apps", self, ("max_document_bytes", "max_documents", "max_text_chars", "num_parsers"))
        check_counts("apps", self, ("max_kept", "max_kept_bytes"))
        check_positive("apps", self, ("keep_s",))
