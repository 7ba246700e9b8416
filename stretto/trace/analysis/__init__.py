"""Analysis of the requests to LLMs that a program consists of: what depends on what, which prompts begin
alike, and how urgent each request is. Pure functions of graphs.

Source: Parrot §4.2 and §5.2.
"""
