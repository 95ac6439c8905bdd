"""Compares the engine and the server with what a user would pick instead, in turns in one run."""
