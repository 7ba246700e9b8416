"""Apps: templates, the components that they are composed of, and ready-made ones."""

from stretto.apps.ready_made import APPS, advanced_rag, agent, naive_rag, search_empowered

__all__ = ["APPS", "advanced_rag", "agent", "naive_rag", "search_empowered"]
