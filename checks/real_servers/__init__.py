"""Checks against unmodified vLLM servers."""
