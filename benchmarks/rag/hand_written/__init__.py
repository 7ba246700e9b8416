"""The apps as a careful programmer writes them with asyncio: a strong baseline."""
