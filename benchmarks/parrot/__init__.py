"""The evaluation of the Parrot paper in virtual time."""
