"""Peers: the engine and the server beside what a user would pick instead, in turns in one run."""
