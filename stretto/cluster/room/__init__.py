"""Who has room in the KV memory of the instances of one model: programs that are inside, and those held."""
