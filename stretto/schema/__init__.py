"""The typed reader, and the parser of engines files: TOML text that describes engines and the machine.

Only `reading.py` opens a file.

Internal: it may change with any release.
"""
