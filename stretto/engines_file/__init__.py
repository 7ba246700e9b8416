"""Parser of engines files: TOML text that describes engines, their replicas and the machine.

Nothing here opens a file.
"""
