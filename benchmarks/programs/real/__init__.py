"""Programs in real time: by hand and on the library, before servers and on models of this machine."""
