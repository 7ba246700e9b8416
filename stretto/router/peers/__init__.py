"""The requests of other routers before the same workers, as far as they have told of them."""
