package org.txstore.peer;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;

/** A name server and a broker on a store, on loopback ports of their own, until stopped (or until the process is killed). */
final class Broker implements Peer.Handled {
    private static final long ROUTE_TIMEOUT_MS = 60_000;
    private static final long CLOSE_TIMEOUT_MS = 60_000;
    /** So far below its port a broker listens, too, for its fast lane. */
    private static final int FAST_BELOW = 2;
    /** Null: a member of a group, which knows only a name server outside of this process or of another command. */
    private final NamesrvController names;
    private final BrokerController broker;
    private final String namesAddress;

    private Broker(NamesrvController names, BrokerController broker, String namesAddress) {
        this.names = names;
        this.broker = broker;
        this.namesAddress = namesAddress;
    }

    static Broker start(JSONObject arguments) throws Exception {
        MessageStoreConfig storeConfig = Settings.store(arguments);
        BrokerConfig brokerConfig = Settings.broker(arguments);
        // Port 0: it listens at a free one.
        NettyServerConfig namesServer = server("127.0.0.1", 0);
        NamesrvController names = new NamesrvController(new NamesrvConfig(), namesServer);
        BrokerController broker = null;
        try {
            check(names.initialize(), "the name server refuses to initialize");
            names.start();
            String namesAddress = "127.0.0.1:" + namesServer.getListenPort();
            NettyServerConfig server = server(brokerConfig.getBrokerIP1(), brokerConfig.getListenPort());
            String others = arguments.getJSONObject("broker_config").getString("namesrvAddr");
            brokerConfig.setNamesrvAddr(others == null ? namesAddress : namesAddress + ";" + others);
            broker = new BrokerController(
                brokerConfig, server, new NettyClientConfig(), storeConfig, Settings.auth(arguments));
            // It looks through the packages for classes in a way that two at once disturb.
            synchronized (Broker.class) {
                check(broker.initialize(), "the broker refuses to initialize");
            }
            broker.start();
            Broker started = new Broker(names, broker, namesAddress);
            started.registerUntilKnown(brokerConfig.getBrokerName());
            return started;
        } catch (Throwable problem) {
            shutDown(broker, names);
            throw problem;
        }
    }

    /** A member of a group, mostly a slave. Its only name server is `names`, which tells it where its master is. */
    static Broker member(JSONObject arguments) throws Exception {
        BrokerConfig brokerConfig = Settings.broker(arguments);
        NettyServerConfig server = server(brokerConfig.getBrokerIP1(), brokerConfig.getListenPort());
        String names = arguments.getString("names");
        brokerConfig.setNamesrvAddr(names);
        BrokerController broker =
            new BrokerController(brokerConfig, server, new NettyClientConfig(), Settings.store(arguments), null);
        try {
            synchronized (Broker.class) {
                check(broker.initialize(), "the broker refuses to initialize");
            }
            broker.start();
            return new Broker(null, broker, names);
        } catch (Throwable problem) {
            shutDown(broker, null);
            throw problem;
        }
    }

    /** Registers now, and takes topics, groups and offsets from the master, instead of within a minute. */
    Object follow() {
        broker.registerBrokerAll(true, false, true);
        broker.getSlaveSynchronize().syncAll();
        return broker.getSlaveSynchronize().getMasterAddr();
    }

    private static void check(boolean well, String otherwise) {
        if (!well) {
            throw new IllegalStateException(otherwise);
        }
    }

    private static NettyServerConfig server(String address, int port) {
        NettyServerConfig config = new NettyServerConfig();
        config.setBindAddress(address);
        config.setListenPort(port);
        return config;
    }

    /** A name server of its own is asked: the first registration may find none yet, and the next would come only after ten seconds. */
    private void registerUntilKnown(String topic) throws InterruptedException {
        if (names == null) {
            broker.registerBrokerAll(true, false, true);
            return;
        }
        long deadline = System.currentTimeMillis() + ROUTE_TIMEOUT_MS;
        while (names.getRouteInfoManager().pickupTopicRouteData(topic) == null) {
            check(System.currentTimeMillis() < deadline, "the broker's route is not known");
            broker.registerBrokerAll(true, false, true);
            Thread.sleep(20);
        }
    }

    @Override
    public JSONObject facts() {
        return new JSONObject().fluentPut("names", namesAddress).fluentPut("address", broker.getBrokerAddr());
    }

    /** How far everything is: queues, the log, each group's offsets, what is not dispatched yet. */
    JSONObject status() {
        DefaultMessageStore store = (DefaultMessageStore) broker.getMessageStore();
        JSONArray queues = new JSONArray();
        for (var topic : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : topic.values()) {
                queues.add(new JSONArray(queue.getTopic(), queue.getQueueId(), queue.getMinOffsetInQueue(), queue.getMaxOffsetInQueue()));
            }
        }
        return new JSONObject()
            .fluentPut("queues", queues)
            .fluentPut("offsets", new TreeMap<>(broker.getConsumerOffsetManager().getOffsetTable()))
            .fluentPut("max_physical_offset", store.getMaxPhyOffset())
            .fluentPut("undispatched_bytes", store.dispatchBehindBytes());
    }

    /** Every message of a topic, queue by queue, as the store has it. */
    JSONArray messages(JSONObject arguments) {
        JSONArray found = new JSONArray();
        for (ConsumeQueueInterface queue : queuesOf(arguments.getString("topic"))) {
            for (long next = queue.getMinOffsetInQueue(); next < queue.getMaxOffsetInQueue(); next++) {
                MessageExt message = broker.getMessageStore().lookMessageByOffset(queue.get(next).getPos());
                found.add(new JSONObject()
                    .fluentPut("body", new String(message.getBody(), StandardCharsets.UTF_8))
                    .fluentPut("properties", message.getProperties())
                    .fluentPut("stored_ms", message.getStoreTimestamp()));
            }
        }
        return found;
    }

    private Collection<ConsumeQueueInterface> queuesOf(String topic) {
        var queues = ((DefaultMessageStore) broker.getMessageStore()).getConsumeQueueTable().get(topic);
        return queues == null ? List.of() : new TreeMap<>(queues).values();
    }

    /** Makes a topic of a message type: NORMAL, FIFO, DELAY, TRANSACTION or MIXED. */
    Object topic(JSONObject arguments) throws InterruptedException {
        int queues = arguments.getIntValue("queues");
        TopicConfig config = new TopicConfig(arguments.getString("topic"), queues, queues);
        config.setAttributes(Map.of("+message.type", arguments.getString("type")));
        broker.getTopicConfigManager().updateTopicConfig(config);
        registerUntilKnown(config.getTopicName());
        return null;
    }

    /** Makes a consumer group; `fifo`: its messages are handed out in order. */
    Object group(JSONObject arguments) {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(arguments.getString("group"));
        config.setConsumeMessageOrderly(arguments.getBooleanValue("fifo"));
        config.setRetryMaxTimes(arguments.getIntValue("retries"));
        broker.getSubscriptionGroupManager().updateSubscriptionGroupConfig(config);
        return null;
    }

    /** For what goes on within the process. */
    BrokerController controller() {
        return broker;
    }

    Object stop() throws InterruptedException {
        shutDown(broker, names);
        return null;
    }

    private static void shutDown(BrokerController broker, NamesrvController names) throws InterruptedException {
        try (Hurry hurry = new Hurry()) {
            if (broker != null) {
                broker.shutdown();
            }
            if (names != null) {
                names.shutdown();
            }
        }
        if (broker != null) {
            awaitClosed(broker);
        }
    }

    /**
     * RocketMQ closes its ports on other threads, some time after its shutdown has returned. Who starts a broker at the
     * same ports would find them in use.
     */
    private static void awaitClosed(BrokerController broker) throws InterruptedException {
        int listen = broker.getNettyServerConfig().getListenPort();
        long deadline = System.currentTimeMillis() + CLOSE_TIMEOUT_MS;
        for (int port : new int[] {listen, listen - FAST_BELOW, broker.getMessageStoreConfig().getHaListenPort()}) {
            while (port > 0 && isTaken(port)) {
                check(System.currentTimeMillis() < deadline, "a broker that was stopped still listens at " + port);
                Thread.sleep(10);
            }
        }
    }

    private static boolean isTaken(int port) {
        try (ServerSocket socket = new ServerSocket()) {
            socket.setReuseAddress(true);
            socket.bind(new InetSocketAddress(port));
            return false;
        } catch (IOException taken) {
            return true;
        }
    }
}
