package org.txstore.peer;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * A store as the real DefaultMessageStore finds it: loaded and started without a broker, every queue read in order,
 * keys and offset ids looked up, and shut down cleanly. Says whether it loaded; a refusal is an answer, not an error.
 */
final class StoreDump {
    private static final long DISPATCH_TIMEOUT_MS = 60_000;
    private final DefaultMessageStore store;

    private StoreDump(DefaultMessageStore store) {
        this.store = store;
    }

    static JSONObject of(JSONObject arguments) throws Exception {
        BrokerStatsManager statistics = new BrokerStatsManager("peers", false);
        DefaultMessageStore store = new DefaultMessageStore(Settings.store(arguments), statistics,
            (topic, queueId, logicOffset, tagsCode, time, filter, properties) -> { },
            Settings.broker(arguments), new ConcurrentHashMap<>());
        try {
            String refused = refusal(store);
            return refused == null
                ? new StoreDump(store).facts(arguments)
                : new JSONObject().fluentPut("loaded", false).fluentPut("refused", refused);
        } finally {
            store.shutdown();
        }
    }

    private static String refusal(DefaultMessageStore store) {
        try {
            if (!store.load()) {
                return "load() returned false";
            }
            store.start();
            return null;
        } catch (Exception problem) {
            return problem.toString();
        }
    }

    private JSONObject facts(JSONObject arguments) throws Exception {
        long deadline = System.currentTimeMillis() + DISPATCH_TIMEOUT_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("still dispatching after " + DISPATCH_TIMEOUT_MS + " ms");
            }
            Thread.sleep(5);
        }
        JSONArray queues = new JSONArray();
        JSONArray messages = new JSONArray();
        JSONArray gaps = new JSONArray();
        for (var topic : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : topic.values()) {
                queues.add(queue(queue));
                messages.addAll(messages(queue, gaps));
            }
        }
        return new JSONObject()
            .fluentPut("loaded", true)
            .fluentPut("min_physical_offset", store.getMinPhyOffset())
            .fluentPut("max_physical_offset", store.getMaxPhyOffset())
            .fluentPut("queues", queues)
            .fluentPut("messages", messages)
            .fluentPut("gaps", gaps)
            .fluentPut("by_key", byKey(arguments.getJSONArray("keys")))
            .fluentPut("by_offset_id", byOffsetId(arguments.getJSONArray("offset_ids")));
    }

    private static JSONObject queue(ConsumeQueueInterface queue) {
        return new JSONObject()
            .fluentPut("topic", queue.getTopic())
            .fluentPut("queue_id", queue.getQueueId())
            .fluentPut("first", queue.getMinOffsetInQueue())
            .fluentPut("end", queue.getMaxOffsetInQueue());
    }

    /** A unit of padding stands for no message: its offset is a gap. */
    private JSONArray messages(ConsumeQueueInterface queue, JSONArray gaps) {
        JSONArray found = new JSONArray();
        for (long offset = queue.getMinOffsetInQueue(); offset < queue.getMaxOffsetInQueue(); offset++) {
            CqUnit unit = queue.get(offset);
            if (unit != null && unit.getPos() == 0 && unit.getSize() == Integer.MAX_VALUE) {
                gaps.add(new JSONArray(queue.getTopic(), queue.getQueueId(), offset));
                continue;
            }
            SelectMappedBufferResult record = unit == null ? null : store.selectOneMessageByOffset(unit.getPos(), unit.getSize());
            if (record == null) {
                throw new IllegalStateException("no record at " + queue.getTopic() + " " + queue.getQueueId() + " " + offset);
            }
            try {
                found.add(Records.stored(record.getByteBuffer())
                    .fluentPut("unit_topic", queue.getTopic())
                    .fluentPut("unit_queue_id", queue.getQueueId())
                    .fluentPut("unit_queue_offset", offset)
                    .fluentPut("unit_physical_offset", unit.getPos())
                    .fluentPut("unit_size", unit.getSize())
                    .fluentPut("tags_code", unit.getTagsCode()));
            } finally {
                record.release();
            }
        }
        return found;
    }

    /** For each [topic, key] the physical offsets, newest first; as a client does, what only shares the hash is left out. */
    private JSONArray byKey(JSONArray keys) {
        JSONArray answers = new JSONArray();
        for (int i = 0; keys != null && i < keys.size(); i++) {
            String topic = keys.getJSONArray(i).getString(0);
            String key = keys.getJSONArray(i).getString(1);
            JSONArray offsets = new JSONArray();
            QueryMessageResult result = store.queryMessage(topic, key, 10_000, 0, Long.MAX_VALUE);
            for (ByteBuffer record : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(record.duplicate(), false, false, false);
                if (message.getTopic().equals(topic) && names(message, key)) {
                    offsets.add(message.getCommitLogOffset());
                }
            }
            result.release();
            answers.add(offsets);
        }
        return answers;
    }

    private static boolean names(MessageExt message, String key) {
        String keys = message.getKeys();
        return key.equals(message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX))
            || keys != null && List.of(keys.split(MessageConst.KEY_SEPARATOR)).contains(key);
    }

    private JSONArray byOffsetId(JSONArray ids) throws Exception {
        JSONArray answers = new JSONArray();
        for (int i = 0; ids != null && i < ids.size(); i++) {
            MessageExt message = store.lookMessageByOffset(MessageDecoder.decodeMessageId(ids.getString(i)).getOffset());
            answers.add(message == null ? null : message.getCommitLogOffset());
        }
        return answers;
    }
}
