"""Models that are fetched by name."""
