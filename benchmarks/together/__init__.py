"""Queries and offline work on one fleet."""
