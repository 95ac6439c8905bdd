package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

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
        }
        for (Thread thread : threads) {
            thread.join();
        }
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
        boolean all = left.await(60, TimeUnit.SECONDS);
        long taken = System.nanoTime() - first.get();
        consumer.shutdown();
        return new JSONObject().fluentPut("all", all).fluentPut("per_second", (count - left.getCount()) * 1e9 / taken);
    }
}
