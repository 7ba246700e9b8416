"""What schedulers share with a router: fleets, what caches hold, placement policies, room.

Internal: it may change with any release.
"""
