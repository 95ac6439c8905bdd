package org.txstore.peer;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A real DefaultMQPushConsumer from the first offset on, until nothing has come for a while. */
final class Consumer {
    private Consumer() {
    }

    /**
     * `topics`: name to tags; `later`: a message's first key to how often it is refused; `idle_ms`: how long nothing
     * must come; `at_least`, `timeout_ms`: idle or not, it waits for so many, at most so long.
     */
    static JSONArray consume(JSONObject arguments) throws Exception {
        JSONArray received = new JSONArray();
        AtomicLong last = new AtomicLong(System.nanoTime());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.getString("group"));
        consumer.setNamesrvAddr(arguments.getString("names"));
        consumer.setInstanceName("consumer-" + System.nanoTime());
        consumer.setVipChannelEnabled(false);
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setPollNameServerInterval(1_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        for (var topic : arguments.getJSONObject("topics").entrySet()) {
            consumer.subscribe(topic.getKey(), (String) topic.getValue());
        }
        JSONObject later = arguments.getJSONObject("later") == null ? new JSONObject() : arguments.getJSONObject("later");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            last.set(System.nanoTime());
            return take(messages, later, received);
        });
        consumer.start();
        last.set(System.nanoTime());
        try {
            awaitIdle(arguments, received, last);
        } finally {
            try (Hurry hurry = new Hurry()) {
                consumer.shutdown();
            }
        }
        synchronized (received) {
            return new JSONArray(received);
        }
    }

    private static ConsumeConcurrentlyStatus take(List<MessageExt> messages, JSONObject later, JSONArray received) {
        boolean refused = false;
        synchronized (received) {
            for (MessageExt message : messages) {
                String first = String.valueOf(message.getKeys()).split(" ")[0];
                boolean refuse = message.getReconsumeTimes() < later.getIntValue(first);
                received.add(Records.facts(message).fluentPut("refused", refuse));
                refused |= refuse;
            }
        }
        return refused ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private static void awaitIdle(JSONObject arguments, JSONArray received, AtomicLong last) throws InterruptedException {
        long idleNs = arguments.getLongValue("idle_ms", 1_500) * 1_000_000;
        long deadline = System.nanoTime() + arguments.getLongValue("timeout_ms", 30_000) * 1_000_000;
        int wanted = arguments.getIntValue("at_least", 0);
        while (System.nanoTime() < deadline) {
            int count;
            synchronized (received) {
                count = received.size();
            }
            if (count >= wanted && System.nanoTime() - last.get() > idleNs) {
                return;
            }
            Thread.sleep(10);
        }
    }
}
