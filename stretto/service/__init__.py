"""The service: programs on semantic variables over HTTP, for many tenants.

Source: Parrot §4.1, §7.

Internal: it may change with any release.
"""
