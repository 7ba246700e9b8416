"""How many requests of plain traffic are joined with the program that they belong to, and what that costs."""
