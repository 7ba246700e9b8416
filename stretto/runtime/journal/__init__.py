"""Journals: files of what a long run has finished, from which the same run goes on after it was ended."""
