"""Deployed apps at the service: what they take, their running queries, and which queries are admitted."""
