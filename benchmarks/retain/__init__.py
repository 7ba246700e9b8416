"""The benchmark of eviction: how many blocks a prefix cache computes again, beside the least possible."""
