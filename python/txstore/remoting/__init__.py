"""RocketMQ's remoting protocol: a server that speaks it, and clients.

In and out: what the rooms below take and give. Always: importing starts nothing. Not here: anything but the rooms.
"""
