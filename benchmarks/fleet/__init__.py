"""A harness in which programs answer the same queries on the same emulated servers."""
