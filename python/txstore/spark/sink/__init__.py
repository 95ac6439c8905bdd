"""Sink: writes DataFrames and streams as messages, to a store of this machine or to brokers."""
