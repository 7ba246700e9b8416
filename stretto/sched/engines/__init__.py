"""Queues of engines, and the scheduler of batch engines."""
