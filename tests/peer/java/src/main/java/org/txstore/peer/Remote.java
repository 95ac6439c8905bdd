package org.txstore.peer;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's own clients and its command line, against whatever server: each command is whole in itself. */
final class Remote {
    private Remote() {
    }

    /** Sends `count` messages of `topic`, `how`: sync, async, oneway; returns how many were acknowledged. */
    static Object produce(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(arguments.getString("group"), Settings.account(arguments));
        producer.setNamesrvAddr(arguments.getString("names"));
        producer.setInstanceName("remote-" + System.nanoTime());
        producer.setSendMsgTimeout(30_000);
        producer.start();
        int count = arguments.getIntValue("count");
        JSONArray ids = new JSONArray();
        JSONArray errors = new JSONArray();
        CountDownLatch answered = new CountDownLatch(count);
        try {
            for (int number = 0; number < count; number++) {
                Message message = new Message(arguments.getString("topic"), "t" + number % 3, "k" + number,
                    Integer.toString(number).getBytes(StandardCharsets.UTF_8));
                switch (arguments.getString("how")) {
                    case "async" -> producer.send(message, noting(ids, errors, answered));
                    case "oneway" -> {
                        producer.sendOneway(message);
                        answered.countDown();
                    }
                    default -> {
                        ids.add(producer.send(message).getMsgId());
                        answered.countDown();
                    }
                }
            }
            answered.await(30, TimeUnit.SECONDS);
            if (arguments.getString("how").equals("oneway")) {
                // The server reads a connection in order, so its answer shows that it has read all of them.
                producer.send(new Message(arguments.getString("topic") + "-after", "after".getBytes(StandardCharsets.UTF_8)));
            }
        } finally {
            producer.shutdown();
        }
        return new JSONObject().fluentPut("ids", ids).fluentPut("errors", errors);
    }

    private static SendCallback noting(JSONArray ids, JSONArray errors, CountDownLatch answered) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                synchronized (ids) {
                    ids.add(result.getMsgId());
                }
                answered.countDown();
            }

            @Override
            public void onException(Throwable problem) {
                synchronized (ids) {
                    errors.add(problem.toString());
                }
                answered.countDown();
            }
        };
    }

    /**
     * `members` push consumers of one group, `how`: orderly, broadcast or concurrent, until `wanted` messages came in
     * all. `fail`: a key that is refused `times` times. Each message tells which member had it.
     */
    static Object push(JSONObject arguments) throws Exception {
        JSONArray received = new JSONArray();
        int members = arguments.getIntValue("members", 1);
        DefaultMQPushConsumer[] consumers = new DefaultMQPushConsumer[members];
        for (int member = 0; member < members; member++) {
            consumers[member] = member(arguments, member, received);
            consumers[member].start();
        }
        try {
            await(received, arguments);
        } finally {
            try (Hurry hurry = new Hurry()) {
                for (DefaultMQPushConsumer consumer : consumers) {
                    consumer.shutdown();
                }
            }
        }
        synchronized (received) {
            return new JSONArray(received);
        }
    }

    private static DefaultMQPushConsumer member(JSONObject arguments, int member, JSONArray received) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            arguments.getString("group"), Settings.account(arguments));
        consumer.setNamesrvAddr(arguments.getString("names"));
        consumer.setInstanceName("member-" + member + "-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(arguments.getIntValue("max_reconsume_times", -1));
        consumer.setSuspendCurrentQueueTimeMillis(50);
        consumer.subscribe(arguments.getString("topic"), arguments.getString("tags"));
        String how = arguments.getString("how");
        if (how.equals("broadcast")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (how.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                take(messages, member, arguments, received)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                return take(messages, member, arguments, received)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        return consumer;
    }

    private static boolean take(List<MessageExt> messages, int member, JSONObject arguments, JSONArray received) {
        boolean well = true;
        synchronized (received) {
            for (MessageExt message : messages) {
                boolean fails = message.getKeys() != null && message.getKeys().equals(arguments.getString("fail"))
                    && message.getReconsumeTimes() < arguments.getIntValue("times");
                well &= !fails;
                received.add(fact(message).fluentPut("member", member).fluentPut("failed", fails));
            }
        }
        return well;
    }

    private static JSONObject fact(MessageExt message) {
        return new JSONObject().fluentPut("topic", message.getTopic()).fluentPut("queue_id", message.getQueueId())
            .fluentPut("queue_offset", message.getQueueOffset()).fluentPut("keys", message.getKeys())
            .fluentPut("body", new String(message.getBody(), StandardCharsets.UTF_8))
            .fluentPut("reconsume_times", message.getReconsumeTimes());
    }

    private static void await(JSONArray received, JSONObject arguments) throws InterruptedException {
        long deadline = System.nanoTime() + arguments.getLongValue("timeout_ms", 30_000) * 1_000_000;
        while (System.nanoTime() < deadline) {
            synchronized (received) {
                if (received.size() >= arguments.getIntValue("wanted")) {
                    break;
                }
            }
            Thread.sleep(10);
        }
        // What should not come has its chance to.
        Thread.sleep(arguments.getLongValue("linger_ms", 300));
    }

    /** A lite pull consumer that polls until `wanted` came, then commits. */
    static Object litePull(JSONObject arguments) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(
            arguments.getString("group"), Settings.account(arguments));
        consumer.setNamesrvAddr(arguments.getString("names"));
        consumer.setInstanceName("lite-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(arguments.getString("topic"), arguments.getString("tags"));
        consumer.start();
        JSONArray received = new JSONArray();
        try {
            long deadline = System.nanoTime() + arguments.getLongValue("timeout_ms", 30_000) * 1_000_000;
            while (received.size() < arguments.getIntValue("wanted") && System.nanoTime() < deadline) {
                consumer.poll(200).forEach(message -> received.add(fact(message)));
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
        return received;
    }

    /** What mqadmin prints for these `arguments`. */
    static synchronized Object admin(JSONObject arguments) {
        PrintStream before = System.out;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
        try {
            System.setProperty("rocketmq.namesrv.addr", arguments.getString("names"));
            MQAdminStartup.main0(arguments.getList("arguments", String.class).toArray(new String[0]), Settings.account(arguments));
        } finally {
            System.setOut(before);
        }
        return said.toString(StandardCharsets.UTF_8);
    }
}
