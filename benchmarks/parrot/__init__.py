"""The evaluation of the Parrot paper in virtual time, and a part of it before emulated servers."""
