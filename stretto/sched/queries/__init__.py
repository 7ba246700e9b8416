"""Schedulers of the upper tier: what each query and session does next."""
