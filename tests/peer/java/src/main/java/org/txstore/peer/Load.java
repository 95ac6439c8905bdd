package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
<<<<<<< HEAD
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
=======
>>>>>>> main
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
<<<<<<< HEAD
import org.apache.rocketmq.client.producer.LocalTransactionState;
=======
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
>>>>>>> main
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

<<<<<<< HEAD
/** How fast a server is, as a Java client sees it. */
final class Load {
    private Load() {
    }

    /** `kind`: send or transaction; `threads` send for `seconds` after a second of warming up; `bytes` a body. */
    static Object produce(JSONObject arguments) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("load");
        producer.setNamesrvAddr(arguments.getString("names"));
        producer.setInstanceName("load-" + System.nanoTime());
        producer.setTransactionListener(new Commits());
        producer.start();
        byte[] body = new byte[arguments.getIntValue("bytes", 256)];
        Arrays.fill(body, (byte) 'x');
        boolean transaction = arguments.getString("kind").equals("transaction");
        long begin = System.nanoTime() + 1_000_000_000L * arguments.getLongValue("warm_seconds", 1);
        long end = begin + 1_000_000_000L * arguments.getLongValue("seconds", 3);
        AtomicLong failed = new AtomicLong();
        List<long[]> taken = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < arguments.getIntValue("threads"); number++) {
            Thread thread = new Thread(() -> {
                long[] latencies = new long[1 << 20];
                int count = 0;
                for (long now = System.nanoTime(); now < end; ) {
                    try {
                        Message message = new Message(arguments.getString("topic"), body);
                        if (transaction) {
                            producer.sendMessageInTransaction(message, null);
                        } else {
                            producer.send(message);
                        }
                    } catch (Exception problem) {
                        failed.incrementAndGet();
                    }
                    long after = System.nanoTime();
                    if (now >= begin && count < latencies.length) {
                        latencies[count++] = after - now;
                    }
                    now = after;
                }
                synchronized (taken) {
                    taken.add(Arrays.copyOf(latencies, count));
                }
            });
            thread.start();
            threads.add(thread);
=======
/** RocketMQ's own clients, as fast as a server lets them: how many a second. For benches. */
final class Load {
    private interface Work {
        SendResult once(Message message) throws Exception;
    }

    private Load() {
    }

    /** Sends one after the other in each of `threads` for `seconds`; `transactions`: each is a transaction that commits. */
    static Object send(JSONObject arguments) throws Exception {
        boolean transactions = arguments.getBooleanValue("transactions");
        String group = "load-" + System.nanoTime();
        DefaultMQProducer producer = transactions ? committing(group) : new DefaultMQProducer(group);
        producer.setNamesrvAddr(arguments.getString("names"));
        producer.setInstanceName(group);
        producer.start();
        try {
            Work work = transactions ? message -> producer.sendMessageInTransaction(message, null) : producer::send;
            return rate(arguments, work);
        } finally {
            producer.shutdown();
        }
    }

    private static TransactionMQProducer committing(String group) {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object none) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    private static JSONObject rate(JSONObject arguments, Work work) throws Exception {
        String topic = arguments.getString("topic");
        byte[] body = new byte[arguments.getIntValue("body_bytes")];
        AtomicLong done = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        work.once(new Message(topic, body));
        long begin = System.nanoTime();
        long end = begin + arguments.getLongValue("milliseconds") * 1_000_000;
        Thread[] threads = new Thread[arguments.getIntValue("threads")];
        for (int number = 0; number < threads.length; number++) {
            threads[number] = new Thread(() -> {
                while (System.nanoTime() < end) {
                    try {
                        boolean well = work.once(new Message(topic, body)).getSendStatus() == SendStatus.SEND_OK;
                        (well ? done : failed).incrementAndGet();
                    } catch (Exception problem) {
                        failed.incrementAndGet();
                    }
                }
            });
            threads[number].start();
>>>>>>> main
        }
        for (Thread thread : threads) {
            thread.join();
        }
<<<<<<< HEAD
        producer.shutdown();
        long[] all = taken.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        return new JSONObject().fluentPut("failed", failed.get())
            .fluentPut("per_second", all.length * 1e9 / (end - begin))
            .fluentPut("median_us", all.length == 0 ? 0 : all[all.length / 2] / 1_000)
            .fluentPut("p99_us", all.length == 0 ? 0 : all[all.length * 99 / 100] / 1_000);
    }

    private static final class Commits implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object none) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    /** A new group's push consumer takes `count` messages from the first on: how many a second, from the first one. */
    static Object consume(JSONObject arguments) throws Exception {
        int count = arguments.getIntValue("count");
        CountDownLatch left = new CountDownLatch(count);
        AtomicLong first = new AtomicLong();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.getString("group"));
=======
        double seconds = (System.nanoTime() - begin) / 1e9;
        return new JSONObject().fluentPut("rate", done.get() / seconds).fluentPut("done", done.get() + 1)
            .fluentPut("failed", failed.get());
    }

    /** Consumes `wanted` messages by push, from the first on; timed from the first message to the last. */
    static Object push(JSONObject arguments) throws Exception {
        int wanted = arguments.getIntValue("wanted");
        CountDownLatch left = new CountDownLatch(wanted);
        AtomicLong first = new AtomicLong();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("load-" + System.nanoTime());
>>>>>>> main
        consumer.setNamesrvAddr(arguments.getString("names"));
        consumer.setInstanceName("load-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(arguments.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            messages.forEach(message -> left.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
<<<<<<< HEAD
        boolean all = left.await(60, TimeUnit.SECONDS);
        long taken = System.nanoTime() - first.get();
        consumer.shutdown();
        return new JSONObject().fluentPut("all", all).fluentPut("per_second", (count - left.getCount()) * 1e9 / taken);
=======
        try {
            boolean all = left.await(100, TimeUnit.SECONDS);
            double seconds = (System.nanoTime() - first.get()) / 1e9;
            return new JSONObject().fluentPut("rate", (wanted - left.getCount()) / seconds).fluentPut("all", all);
        } finally {
            consumer.shutdown();
        }
>>>>>>> main
    }
}
