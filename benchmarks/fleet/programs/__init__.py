"""The contestants' programs. Each runs in a process of its own, in its own environment."""
