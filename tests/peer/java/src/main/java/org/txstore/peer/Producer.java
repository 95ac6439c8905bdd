package org.txstore.peer;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A real TransactionMQProducer with a plan for each transaction: the answer of its local transaction, then one for each
 * check, the last again and again. It keeps a log of what it was told, what it answered, and what it was asked.
 */
final class Producer implements Peer.Handled, TransactionListener {
    private final TransactionMQProducer producer;
    /** Transaction id to the answers to its checks, in turn. */
    private final Map<String, List<String>> checks = new ConcurrentHashMap<>();
    private final List<String> otherwise;
    private final Map<String, Integer> asked = new ConcurrentHashMap<>();
    private final List<JSONObject> log = new ArrayList<>();

    private Producer(TransactionMQProducer producer, List<String> otherwise) {
        this.producer = producer;
        this.otherwise = otherwise;
    }

    static Producer start(JSONObject arguments) throws Exception {
        TransactionMQProducer client = new TransactionMQProducer(
            arguments.getString("group"), Settings.account(arguments));
        client.setNamesrvAddr(arguments.getString("names"));
        client.setInstanceName("producer-" + System.nanoTime());
        client.setVipChannelEnabled(false);
        client.setHeartbeatBrokerInterval(1_000);
        client.setPollNameServerInterval(1_000);
        client.setSendMsgTimeout(10_000);
        client.setRetryTimesWhenSendFailed(arguments.getIntValue("retries", 0));
        String compression = arguments.getString("compression");
        client.setCompressType(CompressionType.of(compression == null ? "ZLIB" : compression));
        List<String> otherwise = arguments.getList("otherwise", String.class);
        Producer made = new Producer(client, otherwise == null ? List.of("UNKNOWN") : otherwise);
        JSONObject checks = arguments.getJSONObject("checks");
        if (checks != null) {
            checks.forEach((transaction, answers) -> made.checks.put(transaction, ((JSONArray) answers).toList(String.class)));
        }
        client.setTransactionListener(made);
        client.start();
        return made;
    }

    @Override
    public JSONObject facts() {
        return new JSONObject().fluentPut("group", producer.getProducerGroup());
    }

    private static Message message(JSONObject facts) {
        Message message = new Message(facts.getString("topic"), facts.getString("tags"), facts.getString("keys"),
            facts.getIntValue("flag"), Base64.getDecoder().decode(facts.getString("body")), true);
        JSONObject properties = facts.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
        }
        if (facts.getIntValue("delay_level") > 0) {
            message.setDelayTimeLevel(facts.getIntValue("delay_level"));
        }
        if (facts.getLongValue("delay_ms") > 0) {
            message.setDelayTimeMs(facts.getLongValue("delay_ms"));
        }
        if (facts.getString("immunity_s") != null) {
            message.putUserProperty(MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, facts.getString("immunity_s"));
        }
        return message;
    }

    /** Sends one after another; each answer is in the result, whether it went well or not. */
    JSONArray send(JSONObject arguments) {
        JSONArray answers = new JSONArray();
        for (Object facts : arguments.getJSONArray("messages")) {
            Message message = message((JSONObject) facts);
            Integer queueId = ((JSONObject) facts).getInteger("queue_id");
            answers.add(told(((JSONObject) facts).getString("name"), () -> queueId == null
                ? producer.send(message)
                : producer.send(message, (queues, wanted, none) -> queue(queues, queueId), null)));
        }
        return answers;
    }

    private static MessageQueue queue(List<MessageQueue> queues, int queueId) {
        return queues.stream().filter(queue -> queue.getQueueId() == queueId).findFirst().orElseThrow();
    }

    /** Sends all messages as one batch. */
    JSONObject batch(JSONObject arguments) {
        List<Message> messages = new ArrayList<>();
        arguments.getJSONArray("messages").forEach(facts -> messages.add(message((JSONObject) facts)));
        return told(null, () -> producer.send(messages));
    }

    /** Each with its `answers`; runs until all are sent (not until all are checked). */
    JSONArray transactions(JSONObject arguments) {
        JSONArray answers = new JSONArray();
        for (Object facts : arguments.getJSONArray("transactions")) {
            JSONObject transaction = (JSONObject) facts;
            List<String> plan = transaction.getList("answers", String.class);
            Message message = message(transaction);
            answers.add(told(transaction.getString("name"), () -> producer.sendMessageInTransaction(message, plan)));
        }
        return answers;
    }

    private interface Sending {
        SendResult send() throws Exception;
    }

    private JSONObject told(String name, Sending sending) {
        JSONObject told = new JSONObject().fluentPut("name", name);
        try {
            SendResult result = sending.send();
            told.fluentPut("status", result.getSendStatus().name())
                .fluentPut("message_id", result.getMsgId())
                .fluentPut("offset_message_id", result.getOffsetMsgId())
                .fluentPut("topic", result.getMessageQueue() == null ? null : result.getMessageQueue().getTopic())
                .fluentPut("queue_id", result.getMessageQueue() == null ? null : result.getMessageQueue().getQueueId())
                .fluentPut("queue_offset", result.getQueueOffset())
                .fluentPut("transaction_id", result.getTransactionId());
            if (result instanceof TransactionSendResult transaction) {
                told.put("local_state", transaction.getLocalTransactionState().name());
            }
        } catch (Exception problem) {
            told.put("error", problem.toString());
        }
        note(new JSONObject(told).fluentPut("what", "told"));
        return told;
    }

    @Override
    @SuppressWarnings("unchecked")
    public LocalTransactionState executeLocalTransaction(Message message, Object plan) {
        List<String> answers = (List<String>) plan;
        checks.put(message.getTransactionId(), answers.size() > 1 ? answers.subList(1, answers.size()) : answers);
        note(new JSONObject().fluentPut("what", "local").fluentPut("transaction_id", message.getTransactionId())
            .fluentPut("answer", answers.get(0)));
        return state(answers.get(0));
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt half) {
        int nth = asked.merge(half.getTransactionId(), 1, Integer::sum);
        List<String> answers = checks.getOrDefault(half.getTransactionId(), otherwise);
        String answer = answers.get(Math.min(nth, answers.size()) - 1);
        note(new JSONObject().fluentPut("what", "check").fluentPut("transaction_id", half.getTransactionId())
            .fluentPut("nth", nth).fluentPut("answer", answer)
            .fluentPut("queue_offset", half.getQueueOffset())
            .fluentPut("physical_offset", half.getCommitLogOffset())
            .fluentPut("properties", half.getProperties()));
        return state(answer);
    }

    private static LocalTransactionState state(String answer) {
        return switch (answer) {
            case "COMMIT" -> LocalTransactionState.COMMIT_MESSAGE;
            case "ROLLBACK" -> LocalTransactionState.ROLLBACK_MESSAGE;
            case "UNKNOWN" -> LocalTransactionState.UNKNOW;
            default -> throw new IllegalStateException("the local transaction fails: " + answer);
        };
    }

    private void note(JSONObject event) {
        synchronized (log) {
            log.add(event.fluentPut("at_ms", System.currentTimeMillis()));
        }
    }

    JSONArray log() {
        synchronized (log) {
            return new JSONArray(log);
        }
    }

    JSONArray stop() {
        try (Hurry hurry = new Hurry()) {
            producer.shutdown();
        }
        return log();
    }
}
