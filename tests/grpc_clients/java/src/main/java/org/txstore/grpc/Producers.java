package org.txstore.grpc;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Producers of all kinds of messages. */
final class Producers {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private Producers() {
    }

    static ClientConfiguration configuration(JSONObject facts) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(facts.getString("endpoints"))
            .enableSsl(facts.getBooleanValue("tls"));
        if (facts.containsKey("access_key")) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(facts.getString("access_key"), facts.getString("secret_key")));
        }
        return builder.build();
    }

    static Program.Held start(JSONObject facts) throws ClientException {
        ProducerBuilder builder = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration(facts))
            .setTopics(facts.getList("topics", String.class).toArray(new String[0]));
        List<String> log = new CopyOnWriteArrayList<>();
        JSONObject answers = facts.getJSONObject("answers");
        if (answers != null) {
            builder.setTransactionChecker(message -> {
                String body = Consumers.text(message.getBody());
                List<String> said = answers.containsKey(body) ? answers.getList(body, String.class) : List.of("UNKNOWN");
                String answer = said.get(Math.min(Collections.frequency(log, body), said.size() - 1));
                log.add(body);
                return TransactionResolution.valueOf(answer);
            });
        }
        return new Program.Held(builder.build(), log);
    }

    static Message message(JSONObject facts) {
        byte[] body = facts.containsKey("body")
            ? facts.getString("body").getBytes(StandardCharsets.UTF_8) : new byte[facts.getIntValue("body_bytes")];
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(facts.getString("topic")).setBody(body);
        if (facts.containsKey("tag")) {
            builder.setTag(facts.getString("tag"));
        }
        if (facts.containsKey("keys")) {
            builder.setKeys(facts.getList("keys", String.class).toArray(new String[0]));
        }
        if (facts.containsKey("properties")) {
            facts.getJSONObject("properties").forEach((name, value) -> builder.addProperty(name, String.valueOf(value)));
        }
        if (facts.containsKey("message_group")) {
            builder.setMessageGroup(facts.getString("message_group"));
        }
        if (facts.containsKey("deliver_ms")) {
            builder.setDeliveryTimestamp(facts.getLongValue("deliver_ms"));
        }
        return builder.build();
    }

    static Object send(Program.Held held, JSONObject facts) throws ClientException {
        SendReceipt receipt = ((Producer) held.client()).send(message(facts));
        return new JSONObject().fluentPut("message_id", receipt.getMessageId().toString())
            .fluentPut("recall_handle", receipt.getRecallHandle());
    }

    static Object transact(Program.Held held, JSONObject facts) throws ClientException {
        Producer producer = (Producer) held.client();
        Transaction transaction = producer.beginTransaction();
        SendReceipt receipt = producer.send(message(facts), transaction);
        switch (facts.getString("end")) {
            case "COMMIT" -> transaction.commit();
            case "ROLLBACK" -> transaction.rollback();
            default -> { }
        }
        return Map.of("message_id", receipt.getMessageId().toString());
    }

    static Object recall(Program.Held held, JSONObject facts) throws ClientException {
        ((Producer) held.client()).recallMessage(facts.getString("topic"), facts.getString("recall_handle"));
        return null;
    }

    static Object checks(Program.Held held) {
        return held.seen();
    }
}
