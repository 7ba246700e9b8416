"""OpenAI's API on the engines and apps of a service: chats, completions, embeddings, rerank, models."""
