package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

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
        }
        for (Thread thread : threads) {
            thread.join();
        }
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
        try {
            boolean all = left.await(100, TimeUnit.SECONDS);
            double seconds = (System.nanoTime() - first.get()) / 1e9;
            return new JSONObject().fluentPut("rate", (wanted - left.getCount()) / seconds).fluentPut("all", all);
        } finally {
            consumer.shutdown();
        }
    }
}
