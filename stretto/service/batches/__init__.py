"""OpenAI's files and batches: requests that are answered with what others leave of the engines."""
