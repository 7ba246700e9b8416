"""Runs planned applications: reads their requests, makes their calls, and carries out their plans."""
