"""Whether the prefix guard finds what breaks caches, whether repairs restore the hits, and what it costs."""
