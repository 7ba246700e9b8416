"""Workers that come and go: a source tells which are wanted, and one keeper adds and drains them."""
