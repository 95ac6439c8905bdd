package org.txstore.peer;

/**
 * Shortens a shutdown: RocketMQ's event threads end only when their wait of three seconds is over; woken, they look
 * at once. Others of the process wake too, find nothing, and wait again.
 */
final class Hurry implements AutoCloseable {
    private final Thread waker = new Thread(Hurry::wakeIdlers, "hurry");

    Hurry() {
        waker.start();
    }

    private static void wakeIdlers() {
        try {
            while (true) {
                Thread.sleep(20);
                Thread.getAllStackTraces().keySet().stream()
                    .filter(thread -> thread.getName().startsWith("NettyEventExecutor"))
                    .forEach(Thread::interrupt);
            }
        } catch (InterruptedException done) {
            // Whatever was shut down has ended.
        }
    }

    @Override
    public void close() {
        waker.interrupt();
    }
}
