"""Measures how near emulated servers are to a real one."""
