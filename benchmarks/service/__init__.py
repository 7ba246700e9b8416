"""What the service costs, next to nothing else: real HTTP, and engines that answer at once."""
