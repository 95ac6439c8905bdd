package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** A store opened as a broker does, and closed again: how long it takes until all of it is there. */
final class Opening {
    private Opening() {
    }

    /** `seconds` from making the store to the last message dispatched; `killed`: whether its last process did not close it. */
    static Object open(JSONObject arguments) throws Exception {
        MessageStoreConfig config = Settings.store(arguments);
        boolean killed = Files.exists(Path.of(config.getStorePathRootDir(), "abort"));
        long begin = System.nanoTime();
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("peers", false),
            (topic, queueId, logicOffset, tagsCode, time, filter, properties) -> { },
            Settings.broker(arguments), new ConcurrentHashMap<>());
        try {
            if (!store.load()) {
                throw new IllegalStateException("the store does not load");
            }
            store.start();
            while (store.dispatchBehindBytes() > 0) {
                Thread.sleep(1);
            }
            double seconds = (System.nanoTime() - begin) / 1e9;
            String topic = arguments.getString("topic");
            return new JSONObject().fluentPut("seconds", seconds).fluentPut("killed", killed)
                .fluentPut("messages", store.getMaxOffsetInQueue(topic, 0))
                .fluentPut("bytes", store.getMaxPhyOffset() - store.getMinPhyOffset());
        } finally {
            store.shutdown();
        }
    }
}
