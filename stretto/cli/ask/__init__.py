"""The command `stretto ask`: its options (`request`), their checks (`check`), and the run (`run`)."""
