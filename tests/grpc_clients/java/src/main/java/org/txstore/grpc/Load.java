package org.txstore.grpc;

import com.alibaba.fastjson2.JSONObject;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;

/** A client as fast as its server lets it: how many a second. For benches. */
final class Load {
    private static final int RECEIVED_MAX = 32;
    private static final int FAILED_MAX = 100;
    private static final Duration INVISIBLE = Duration.ofSeconds(60);

    /** Returns how many were done. */
    private interface Work {
        int once() throws Exception;
    }

    private Load() {
    }

    /** Sends one after the other in each of `threads` for `milliseconds`; `transactions`: each one is committed. */
    static Object send(Program.Held held, JSONObject facts) throws Exception {
        Producer producer = (Producer) held.client();
        Message message = Producers.message(facts);
        Work send = () -> {
            producer.send(message);
            return 1;
        };
        Work transact = () -> {
            Transaction transaction = producer.beginTransaction();
            producer.send(message, transaction);
            transaction.commit();
            return 1;
        };
        return rate(facts, facts.getBooleanValue("transactions") ? transact : send, Long.MAX_VALUE);
    }

    /** Receives by up to 32 and acknowledges each, until `wanted` are done. */
    static Object receive(Program.Held held, JSONObject facts) throws Exception {
        SimpleConsumer consumer = (SimpleConsumer) held.client();
        return rate(facts, () -> {
            List<MessageView> messages = consumer.receive(RECEIVED_MAX, INVISIBLE);
            for (MessageView message : messages) {
                consumer.ack(message);
            }
            return messages.size();
        }, facts.getLongValue("wanted"));
    }

    /** From the beginning until the last one of `wanted` was done, or until the time is over. */
    private static JSONObject rate(JSONObject facts, Work work, long wanted) throws InterruptedException {
        AtomicLong done = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        AtomicLong last = new AtomicLong();
        AtomicLong problems = new AtomicLong();
        StringBuffer problem = new StringBuffer();
        long begin = System.nanoTime();
        long end = begin + facts.getLongValue("milliseconds") * 1_000_000;
        Thread[] threads = new Thread[facts.getIntValue("threads")];
        for (int number = 0; number < threads.length; number++) {
            threads[number] = new Thread(() -> {
                while (System.nanoTime() < end && done.get() < wanted && failed.get() < FAILED_MAX) {
                    try {
                        int some = work.once();
                        if (some > 0) {
                            done.addAndGet(some);
                            last.accumulateAndGet(System.nanoTime(), Math::max);
                        }
                    } catch (Exception raised) {
                        failed.incrementAndGet();
                        if (problems.getAndIncrement() == 0) {
                            problem.append(raised);
                        }
                    }
                }
            });
            threads[number].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        double seconds = (last.get() - begin) / 1e9;
        return new JSONObject().fluentPut("rate", done.get() / seconds).fluentPut("done", done.get())
            .fluentPut("failed", failed.get()).fluentPut("problem", problem.toString());
    }
}
