package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.auth.authentication.factory.AuthenticationFactory;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.proxy.ProxyStartup;
import org.apache.rocketmq.proxy.config.Configuration;
import org.apache.rocketmq.proxy.config.ConfigurationManager;
import org.apache.rocketmq.proxy.grpc.GrpcServer;
import org.apache.rocketmq.proxy.grpc.GrpcServerBuilder;
import org.apache.rocketmq.proxy.grpc.v2.GrpcMessagingApplication;
import org.apache.rocketmq.proxy.processor.DefaultMessagingProcessor;
import org.apache.rocketmq.proxy.service.cert.TlsCertificateManager;

/**
 * RocketMQ's proxy in local mode, as its own start class makes it, on a broker of this process. Its settings are
 * static: a process has one.
 */
final class Proxy implements Peer.Handled {
    private final DefaultMessagingProcessor processor;
    private final GrpcMessagingApplication application;
    private final GrpcServer server;
    private final int port;

    private Proxy(BrokerController broker, Path settings) throws Exception {
        System.setProperty(Configuration.CONFIG_PATH_PROPERTY, settings.toString());
        ConfigurationManager.initEnv();
        initConfig();
        AuthConfig access = ConfigurationManager.getAuthConfig();
        if (access.isAuthenticationEnabled()) {
            // A broker does that for its own settings: it makes the user that they name.
            AuthenticationFactory.getMetadataManager(access);
        }
        ProxyStartup.initThreadPoolMonitor();
        port = ConfigurationManager.getProxyConfig().getGrpcServerPort();
        processor = DefaultMessagingProcessor.createForLocalMode(broker);
        application = GrpcMessagingApplication.create(processor);
        server = GrpcServerBuilder.newBuilder(ProxyStartup.createServerExecutor(), port, new TlsCertificateManager())
            .addService(application)
            .configInterceptor()
            .shutdownTime(1, TimeUnit.SECONDS)
            .build();
    }

    /** Up to 5.4 the method's name has a typing error. */
    private static void initConfig() throws Exception {
        for (var method : ConfigurationManager.class.getMethods()) {
            if (method.getName().equals("initConfig") || method.getName().equals("intConfig")) {
                method.invoke(null);
            }
        }
    }

    /** `settings`: those of rmq-proxy.json, which is written to a temporary folder. */
    static Proxy start(BrokerController broker, JSONObject arguments) throws Exception {
        Path folder = Files.createTempDirectory("proxy");
        Path settings = folder.resolve("rmq-proxy.json");
        JSONObject values = arguments.getJSONObject("settings");
        values.putIfAbsent("authConfigPath", folder.resolve("auth").toString());
        values.putIfAbsent("namesrvAddr", broker.getBrokerConfig().getNamesrvAddr());
        Files.writeString(settings, values.toString());
        Proxy proxy = new Proxy(broker, settings);
        proxy.processor.start();
        proxy.application.start();
        proxy.server.start();
        return proxy;
    }

    @Override
    public JSONObject facts() {
        return new JSONObject().fluentPut("port", port);
    }

    Object stop() throws Exception {
        server.shutdown();
        application.shutdown();
        processor.shutdown();
        return null;
    }
}
