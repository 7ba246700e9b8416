"""The apps as a careful programmer writes them with asyncio: what orchestration has to beat."""
