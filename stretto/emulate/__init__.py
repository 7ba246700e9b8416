"""Servers that behave like LLM servers on GPUs, in real time and over real HTTP, without a GPU.

An emulated server takes the time that `costs` predicts for each step of its production local scheduler, and
answers with made-up texts. It needs the packages of the extra `emulate`.

Internal: it may change with any release.
"""
