"""Text of an engines file, read into deployments. Nothing here opens a file."""
