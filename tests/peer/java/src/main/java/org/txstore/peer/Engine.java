package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.transaction.TransactionalMessageService;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.protocol.header.EndTransactionRequestHeader;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/** A broker's store and its transaction service called within the process, without a network: how many a second. */
final class Engine {
    private static final SocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final String GROUP = "load";

    private interface Work {
        void once() throws Exception;
    }

    private final MessageStore store;
    private final TransactionalMessageService transactions;
    private final String topic;
    private final byte[] body;
    private final int threads;
    private final long count;
    private final long nanos;

    Engine(BrokerController broker, JSONObject arguments) {
        store = broker.getMessageStore();
        transactions = broker.getTransactionalMessageService();
        topic = arguments.getString("topic");
        body = new byte[arguments.getIntValue("body_bytes")];
        threads = arguments.getIntValue("threads", 1);
        count = arguments.getLongValue("count");
        nanos = (long) (arguments.getDoubleValue("seconds") * 1e9);
    }

    static Object append(BrokerController broker, JSONObject arguments) throws Exception {
        Engine engine = new Engine(broker, arguments);
        return engine.rate(() -> check(engine.store.putMessage(engine.message())));
    }

    static Object transact(BrokerController broker, JSONObject arguments) throws Exception {
        Engine engine = new Engine(broker, arguments);
        return engine.rate(engine::transaction);
    }

    /** Appends one after the other: the time in microseconds that at most one in a thousand exceeds. */
    static Object latency(BrokerController broker, JSONObject arguments) throws Exception {
        Engine engine = new Engine(broker, arguments);
        long[] times = new long[1 << 20];
        long done = 0;
        long begin = System.nanoTime();
        for (long before = begin; engine.more(done, begin); done++) {
            check(engine.store.putMessage(engine.message()));
            long now = System.nanoTime();
            times[(int) Math.min((now - before) / 1000, times.length - 1)]++;
            before = now;
        }
        long slower = done / 1000;
        int micros = times.length - 1;
        while (micros > 0 && times[micros] <= slower) {
            slower -= times[micros--];
        }
        return new JSONObject().fluentPut("p999_us", micros + 1);
    }

    /**
     * Reads a queue in order by 32, each message decoded with its body and properties; from the start again at the end
     * if the work is limited by time.
     */
    static Object read(BrokerController broker, JSONObject arguments) throws Exception {
        Engine engine = new Engine(broker, arguments);
        long begin = System.nanoTime();
        long offset = 0;
        long seen = 0;
        while (engine.more(seen, begin)) {
            GetMessageResult found = engine.store.getMessage(GROUP, engine.topic, 0, offset, 32, null);
            try {
                for (ByteBuffer bytes : found.getMessageBufferList()) {
                    MessageExt message = MessageDecoder.decode(bytes, true, false);
                    seen += message.getBody().length == engine.body.length ? 1 : 0;
                }
                boolean ends = found.getNextBeginOffset() <= offset;
                if (ends && (engine.nanos == 0 || offset == 0)) {
                    throw new IllegalStateException("the queue ends at " + offset);
                }
                offset = ends ? 0 : found.getNextBeginOffset();
            } finally {
                found.release();
            }
        }
        return new JSONObject().fluentPut("rate", seen / ((System.nanoTime() - begin) / 1e9));
    }

    private MessageExtBrokerInner message() {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setBody(body);
        message.setQueueId(0);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        MessageClientIDSetter.setUniqID(message);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    /** A half message, its look-up, the real message and the op: what a broker does for a transaction that commits. */
    private void transaction() {
        PutMessageResult put = prepare();
        MessageExt prepared = transactions.commitMessage(end(put)).getPrepareMessage();
        MessageExtBrokerInner real = message();
        real.setTopic(prepared.getUserProperty(MessageConst.PROPERTY_REAL_TOPIC));
        real.setQueueId(Integer.parseInt(prepared.getUserProperty(MessageConst.PROPERTY_REAL_QUEUE_ID)));
        real.setBody(prepared.getBody());
        real.setSysFlag(MessageSysFlag.resetTransactionValue(prepared.getSysFlag(), MessageSysFlag.TRANSACTION_COMMIT_TYPE));
        real.setPreparedTransactionOffset(put.getAppendMessageResult().getWroteOffset());
        MessageAccessor.setProperties(real, prepared.getProperties());
        MessageAccessor.clearProperty(real, MessageConst.PROPERTY_REAL_TOPIC);
        MessageAccessor.clearProperty(real, MessageConst.PROPERTY_REAL_QUEUE_ID);
        real.setPropertiesString(MessageDecoder.messageProperties2String(real.getProperties()));
        check(store.putMessage(real));
        transactions.deletePrepareMessage(prepared);
    }

    /** A half message that pends. */
    PutMessageResult prepare() {
        MessageExtBrokerInner half = message();
        MessageAccessor.putProperty(half, MessageConst.PROPERTY_TRANSACTION_PREPARED, "true");
        MessageAccessor.putProperty(half, MessageConst.PROPERTY_PRODUCER_GROUP, GROUP);
        PutMessageResult put = transactions.prepareMessage(half);
        check(put);
        return put;
    }

    /** Its look-up and the op: what a broker does for a transaction that rolls back. */
    void rollBack(PutMessageResult put) {
        transactions.deletePrepareMessage(transactions.rollbackMessage(end(put)).getPrepareMessage());
    }

    private static EndTransactionRequestHeader end(PutMessageResult put) {
        EndTransactionRequestHeader end = new EndTransactionRequestHeader();
        end.setProducerGroup(GROUP);
        end.setTranStateTableOffset(put.getAppendMessageResult().getLogicsOffset());
        end.setCommitLogOffset(put.getAppendMessageResult().getWroteOffset());
        end.setCommitOrRollback(MessageSysFlag.TRANSACTION_COMMIT_TYPE);
        return end;
    }

    private static void check(PutMessageResult result) {
        if (!result.isOk()) {
            throw new IllegalStateException("not stored: " + result.getPutMessageStatus());
        }
    }

    /** Whether there is more to do after `done` things: up to the count, or if there is a time, until it is over. */
    private boolean more(long done, long begin) {
        return nanos == 0 ? done < count : System.nanoTime() - begin < nanos;
    }

    private JSONObject rate(Work work) throws Exception {
        AtomicLong begun = new AtomicLong();
        AtomicLong done = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        Thread[] workers = new Thread[threads];
        long begin = System.nanoTime();
        for (int number = 0; number < threads; number++) {
            workers[number] = new Thread(() -> {
                long mine = 0;
                for (; more(begun.getAndIncrement(), begin); mine++) {
                    try {
                        work.once();
                    } catch (Exception problem) {
                        failed.incrementAndGet();
                    }
                }
                done.addAndGet(mine);
            });
            workers[number].start();
        }
        for (Thread worker : workers) {
            worker.join();
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        return new JSONObject()
                .fluentPut("rate", done.get() / seconds)
                .fluentPut("done", done.get())
                .fluentPut("failed", failed.get());
    }
}
