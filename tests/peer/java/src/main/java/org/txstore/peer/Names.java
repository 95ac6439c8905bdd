package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/** A name server alone, which outlives the brokers that register with it. */
final class Names implements Peer.Handled {
    private final NamesrvController names;
    private final String address;

    private Names(NamesrvController names, String address) {
        this.names = names;
        this.address = address;
    }

    static Names start(JSONObject arguments) {
        NamesrvConfig config = new NamesrvConfig();
        config.setSupportActingMaster(arguments.getBooleanValue("acting"));
        NettyServerConfig server = new NettyServerConfig();
        server.setBindAddress("127.0.0.1");
        server.setListenPort(0);
        NamesrvController names = new NamesrvController(config, server);
        if (!names.initialize()) {
            throw new IllegalStateException("the name server refuses to initialize");
        }
        try {
            names.start();
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
        return new Names(names, "127.0.0.1:" + server.getListenPort());
    }

    @Override
    public JSONObject facts() {
        return new JSONObject().fluentPut("names", address);
    }

    Object stop() {
        names.shutdown();
        return null;
    }
}
