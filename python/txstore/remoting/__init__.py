"""What clients and servers share of RocketMQ's remoting protocol: response codes as errors, and signatures.

Rust encodes and decodes frames and records, and has the table of codes.
"""
