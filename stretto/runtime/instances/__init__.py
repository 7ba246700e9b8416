"""Instances of replicas, seen from the event loop: on it, in a thread, in a process, or behind a server."""

from stretto.runtime.instances.instance import Instance, Post
from stretto.runtime.instances.start import start_instance

__all__ = ["Instance", "Post", "start_instance"]
