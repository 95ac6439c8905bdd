package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.transaction.AbstractTransactionalMessageCheckListener;
import org.apache.rocketmq.broker.transaction.queue.TransactionalMessageServiceImpl;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/** A broker's check rounds called within the process: how long they take and what they write. Nobody is asked. */
final class Checks {
    private static final long QUIET_MS = 1_500;
    private static final long QUIET_TIMEOUT_MS = 60_000;

    private Checks() {
    }

    /** Half messages, of which each `pending_every`-th stays pending; the others are rolled back. Returns when all ops are written. */
    static Object halves(BrokerController broker, JSONObject arguments) throws Exception {
        Engine engine = new Engine(broker, arguments);
        int count = arguments.getIntValue("count");
        int pendingEvery = arguments.getIntValue("pending_every", 1);
        long pending = 0;
        for (int number = 0; number < count; number++) {
            PutMessageResult put = engine.prepare();
            if (number % pendingEvery == 0) {
                pending++;
            } else {
                engine.rollBack(put);
            }
        }
        untilQuiet(broker);
        return new JSONObject().fluentPut("pending", pending);
    }

    /** Ops are written later, by a thread of the broker's own: until none waits, and the log has stopped growing. */
    private static void untilQuiet(BrokerController broker) throws InterruptedException {
        MessageStore store = broker.getMessageStore();
        var waiting = ((TransactionalMessageServiceImpl) broker.getTransactionalMessageService()).getDeleteContext();
        long deadline = System.currentTimeMillis() + QUIET_TIMEOUT_MS;
        long end = -1;
        while (end != store.getMaxPhyOffset() || store.dispatchBehindBytes() > 0
            || waiting.values().stream().anyMatch(ops -> !ops.getContextQueue().isEmpty())) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("the store is still written to");
            }
            end = store.getMaxPhyOffset();
            Thread.sleep(QUIET_MS);
        }
    }

    /**
     * So many rounds, one after the other, of which each finds its halves old enough. `seconds`: without those that a
     * round sleeps where the ops have run dry; `asked`: halves that it wanted to ask about; `bytes`: growth of the log.
     */
    static Object check(BrokerController broker, JSONObject arguments) throws Exception {
        AtomicLong asked = new AtomicLong();
        AtomicLong discarded = new AtomicLong();
        AbstractTransactionalMessageCheckListener listener = new AbstractTransactionalMessageCheckListener(broker) {
            @Override
            public void resolveHalfMsg(MessageExt half) {
                asked.incrementAndGet();
            }

            @Override
            public void resolveDiscardMsg(MessageExt half) {
                discarded.incrementAndGet();
            }
        };
        MessageStore store = broker.getMessageStore();
        long before = store.getMaxPhyOffset();
        double seconds = 0;
        for (int round = 0; round < arguments.getIntValue("rounds"); round++) {
            while (store.dispatchBehindBytes() > 0) {
                Thread.sleep(1);
            }
            // A half of this very millisecond would be left to the next round.
            Thread.sleep(20);
            seconds += awake(() -> broker.getTransactionalMessageService().check(0, 15, listener));
        }
        return new JSONObject().fluentPut("seconds", seconds).fluentPut("asked", asked.get())
            .fluentPut("discarded", discarded.get()).fluentPut("bytes", store.getMaxPhyOffset() - before);
    }

    /** Seconds that the work takes this thread, less those in which it sleeps or waits. */
    private static double awake(Runnable work) {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        threads.setThreadContentionMonitoringEnabled(true);
        long thread = Thread.currentThread().getId();
        long waited = threads.getThreadInfo(thread).getWaitedTime();
        long begin = System.nanoTime();
        work.run();
        long taken = System.nanoTime() - begin;
        waited = threads.getThreadInfo(thread).getWaitedTime() - waited;
        threads.setThreadContentionMonitoringEnabled(false);
        return taken / 1e9 - waited / 1e3;
    }
}
