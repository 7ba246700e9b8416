"""Parser of engines files: TOML text that describes engines, their replicas and the machine.

Only `reading.py` opens a file.

Internal: it may change with any release.
"""
