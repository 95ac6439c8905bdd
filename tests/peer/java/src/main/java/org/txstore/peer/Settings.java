package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import java.util.Properties;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** RocketMQ's configuration, from names and values as a broker's own configuration file has them. */
final class Settings {
    private Settings() {
    }

    static MessageStoreConfig store(JSONObject arguments) {
        MessageStoreConfig config = new MessageStoreConfig();
        String path = arguments.getString("store");
        config.setStorePathRootDir(path);
        config.setStorePathCommitLog(path + "/commitlog");
        // A free port for replication, which nothing uses here.
        config.setHaListenPort(0);
        MixAll.properties2Object(properties(arguments.getJSONObject("store_config")), config);
        return config;
    }

    static BrokerConfig broker(JSONObject arguments) {
        BrokerConfig config = new BrokerConfig();
        config.setBrokerIP1("127.0.0.1");
        config.setBrokerName("peer");
        config.setBrokerClusterName("peers");
        config.setBrokerId(MixAll.MASTER_ID);
        MixAll.properties2Object(properties(arguments.getJSONObject("broker_config")), config);
        return config;
    }

    /** Whom the broker lets in, by names and values among the broker's own; null: everybody. */
    static AuthConfig auth(JSONObject arguments) {
        if (!arguments.getJSONObject("broker_config").getBooleanValue("authenticationEnabled")) {
            return null;
        }
        AuthConfig config = new AuthConfig();
        config.setAuthConfigPath(arguments.getString("store") + "/config");
        MixAll.properties2Object(properties(arguments.getJSONObject("broker_config")), config);
        return config;
    }

    /** Signs what a client asks, where it has an account; else nothing. */
    static RPCHook account(JSONObject arguments) {
        String accessKey = arguments.getString("access_key");
        return accessKey == null ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, arguments.getString("secret_key")));
    }

    private static Properties properties(JSONObject settings) {
        Properties properties = new Properties();
        if (settings != null) {
            settings.forEach((name, value) -> properties.setProperty(name, String.valueOf(value)));
        }
        return properties;
    }
}
