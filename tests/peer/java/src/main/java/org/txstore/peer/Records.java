package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages as JSON, in txstore's names. */
final class Records {
    private static final int SYS_FLAG_AT = 36;

    private Records() {
    }

    /** A message that a client received, or that a store decoded. */
    static JSONObject facts(MessageExt message) {
        String unique = MessageClientIDSetter.getUniqID(message);
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        return new JSONObject()
            .fluentPut("topic", message.getTopic())
            .fluentPut("queue_id", message.getQueueId())
            .fluentPut("queue_offset", message.getQueueOffset())
            .fluentPut("physical_offset", message.getCommitLogOffset())
            .fluentPut("size", message.getStoreSize())
            .fluentPut("message_id", unique)
            .fluentPut("keys", message.getKeys())
            .fluentPut("tags", message.getTags())
            .fluentPut("sys_flag", message.getSysFlag())
            .fluentPut("flag", message.getFlag())
            .fluentPut("born_timestamp_ms", message.getBornTimestamp())
            .fluentPut("store_timestamp_ms", message.getStoreTimestamp())
            .fluentPut("born_host", host(message.getBornHost()))
            .fluentPut("store_host", host(message.getStoreHost()))
            .fluentPut("body_crc", message.getBodyCRC())
            .fluentPut("body_length", body.length)
            .fluentPut("body_sha256", sha256(ByteBuffer.wrap(body)))
            .fluentPut("properties", new TreeMap<>(message.getProperties()))
            .fluentPut("prepared_transaction_offset", message.getPreparedTransactionOffset())
            .fluentPut("reconsume_times", message.getReconsumeTimes());
    }

    /** A record of the log: decoded by RocketMQ, its body decompressed, with the hash of its bytes. */
    static JSONObject stored(ByteBuffer record) {
        String hash = sha256(record.duplicate());
        MessageExt message = MessageDecoder.decode(record.duplicate(), true, true, false);
        if (message == null) {
            throw new IllegalStateException("RocketMQ cannot decode the record with hash " + hash);
        }
        return facts(message)
            .fluentPut("offset_message_id", message.getMsgId())
            .fluentPut("record_sha256", hash)
            // The decoder clears the bit for a compressed body when it decompresses it.
            .fluentPut("sys_flag", record.getInt(record.position() + SYS_FLAG_AT));
    }

    /** `ADDRESS:PORT`, IPv6 as `[ADDRESS]:PORT` in Java's long form. */
    static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        String text = host.getAddress().getHostAddress();
        return (text.contains(":") ? "[" + text + "]" : text) + ":" + host.getPort();
    }

    static String sha256(ByteBuffer bytes) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            digest.update(bytes);
            return HexFormat.of().formatHex(digest.digest());
        } catch (NoSuchAlgorithmException problem) {
            throw new IllegalStateException(problem);
        }
    }
}
