"""The form in which values, calls and errors of programs go between clients and a service: JSON."""
