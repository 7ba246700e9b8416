"""Data that every other package uses: values, tasks, errors, declarations."""
