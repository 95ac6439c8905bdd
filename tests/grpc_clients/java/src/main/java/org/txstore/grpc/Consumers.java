package org.txstore.grpc;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Simple and push consumers. */
final class Consumers {
    private final Map<Integer, MessageView> messages = new ConcurrentHashMap<>();
    private final AtomicInteger numbers = new AtomicInteger();

    static String text(ByteBuffer body) {
        return StandardCharsets.UTF_8.decode(body.duplicate()).toString();
    }

    private static JSONObject factsOf(MessageView message) {
        return new JSONObject()
            .fluentPut("message_id", message.getMessageId().toString())
            .fluentPut("topic", message.getTopic())
            .fluentPut("body", text(message.getBody()))
            .fluentPut("tag", message.getTag().orElse(null))
            .fluentPut("keys", new TreeSet<>(message.getKeys()))
            .fluentPut("properties", message.getProperties())
            .fluentPut("message_group", message.getMessageGroup().orElse(null))
            .fluentPut("attempt", message.getDeliveryAttempt())
            .fluentPut("at_ms", System.currentTimeMillis());
    }

    private static Map<String, FilterExpression> subscription(JSONObject facts) {
        String tags = facts.containsKey("tags") ? facts.getString("tags") : "*";
        FilterExpression wanted = facts.containsKey("sql")
            ? new FilterExpression(facts.getString("sql"), FilterExpressionType.SQL92)
            : new FilterExpression(tags, FilterExpressionType.TAG);
        return Map.of(facts.getString("topic"), wanted);
    }

    static Program.Held simple(JSONObject facts) throws ClientException {
        return new Program.Held(Producers.PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(Producers.configuration(facts))
            .setConsumerGroup(facts.getString("group"))
            .setAwaitDuration(Duration.ofSeconds(facts.getIntValue("await_s")))
            .setSubscriptionExpressions(subscription(facts))
            .build(), null);
    }

    Object receive(Program.Held held, JSONObject facts) throws ClientException {
        List<MessageView> received = ((SimpleConsumer) held.client())
            .receive(facts.getIntValue("max"), Duration.ofSeconds(facts.getIntValue("invisible_s")));
        JSONArray found = new JSONArray();
        for (MessageView message : received) {
            int number = numbers.incrementAndGet();
            messages.put(number, message);
            found.add(factsOf(message).fluentPut("number", number));
        }
        return found;
    }

    Object ack(Program.Held held, JSONObject facts) throws ClientException {
        ((SimpleConsumer) held.client()).ack(messages.get(facts.getIntValue("number")));
        return null;
    }

    Object change(Program.Held held, JSONObject facts) throws ClientException {
        ((SimpleConsumer) held.client()).changeInvisibleDuration(
            messages.get(facts.getIntValue("number")), Duration.ofSeconds(facts.getIntValue("invisible_s")));
        return null;
    }

    /** A listener that fails a body as often as it was told. */
    static Program.Held push(JSONObject facts) throws ClientException {
        JSONObject fail = facts.containsKey("fail") ? facts.getJSONObject("fail") : new JSONObject();
        List<JSONObject> log = new CopyOnWriteArrayList<>();
        Map<String, Integer> seen = new HashMap<>();
        return new Program.Held(Producers.PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(Producers.configuration(facts))
            .setConsumerGroup(facts.getString("group"))
            .setSubscriptionExpressions(subscription(facts))
            .setMessageListener(message -> {
                synchronized (seen) {
                    String body = text(message.getBody());
                    boolean failed = seen.merge(body, 1, Integer::sum) <= fail.getIntValue(body);
                    log.add(factsOf(message).fluentPut("failed", failed));
                    return failed ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                }
            })
            .build(), log);
    }

    static Object received(Program.Held held) {
        return held.seen();
    }
}
