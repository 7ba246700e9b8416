"""Data that every other package uses: values, tasks, errors, declarations.

Internal: it may change with any release.
"""
