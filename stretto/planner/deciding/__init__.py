"""Applications in Python for the planner: the answers decide which calls a query makes."""
