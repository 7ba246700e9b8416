"""`stretto ask`: what is asked (`request`), whether that can be (`check`), and doing it (`run`)."""
