"""Network: the queues of brokers as a DataFrame and as a stream, pulled by RocketMQ's remoting protocol."""
