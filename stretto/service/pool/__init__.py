"""Workers behind a service, for which apps, programs and plain traffic wait in one queue."""
