"""The transactions of a store: their checks, their ends, and their histories."""
