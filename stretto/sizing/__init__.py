"""How many GPUs recorded traffic needs: loads in virtual time, capacities by bisection, the cheapest fleet.

Internal: it may change with any release.
"""
