package org.txstore.peer;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * The conversation: one JSON object a line, commands on stdin, replies on stdout, each with the id of its command.
 * Commands run side by side; the end of stdin ends the process, whatever still runs.
 */
public final class Peer {
    interface Command {
        Object run(JSONObject arguments) throws Exception;
    }

    private final PrintStream out;
    private final ExecutorService threads = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "command");
        thread.setDaemon(true);
        return thread;
    });
    private final Map<String, Command> commands = new ConcurrentHashMap<>();
    private final Map<Integer, Object> held = new ConcurrentHashMap<>();
    private final AtomicInteger handles = new AtomicInteger();

    private Peer(PrintStream out) {
        this.out = out;
        commands.put("dump", StoreDump::of);
        commands.put("names.start", arguments -> hold(Names.start(arguments)));
        commands.put("names.stop", arguments -> release(arguments, Names.class).stop());
        commands.put("broker.start", arguments -> hold(Broker.start(arguments)));
        commands.put("broker.member", arguments -> hold(Broker.member(arguments)));
        commands.put("broker.follow", arguments -> held(arguments, Broker.class).follow());
        commands.put("broker.stop", arguments -> release(arguments, Broker.class).stop());
        commands.put("broker.topic", arguments -> held(arguments, Broker.class).topic(arguments));
        commands.put("broker.group", arguments -> held(arguments, Broker.class).group(arguments));
        commands.put("broker.messages", arguments -> held(arguments, Broker.class).messages(arguments));
        commands.put("broker.status", arguments -> held(arguments, Broker.class).status());
        commands.put("proxy.start", arguments -> hold(Proxy.start(controller(arguments), arguments)));
        commands.put("proxy.stop", arguments -> release(arguments, Proxy.class).stop());
        commands.put("producer.start", arguments -> hold(Producer.start(arguments)));
        commands.put("producer.send", arguments -> held(arguments, Producer.class).send(arguments));
        commands.put("producer.batch", arguments -> held(arguments, Producer.class).batch(arguments));
        commands.put("producer.transactions", arguments -> held(arguments, Producer.class).transactions(arguments));
        commands.put("producer.log", arguments -> held(arguments, Producer.class).log());
        commands.put("producer.stop", arguments -> release(arguments, Producer.class).stop());
        commands.put("consume", Consumer::consume);
        commands.put("resume", Admin::resume);
        commands.put("status", Admin::status);
        commands.put("engine.append", arguments -> Engine.append(controller(arguments), arguments));
        commands.put("engine.latency", arguments -> Engine.latency(controller(arguments), arguments));
        commands.put("engine.transact", arguments -> Engine.transact(controller(arguments), arguments));
        commands.put("engine.read", arguments -> Engine.read(controller(arguments), arguments));
        commands.put("engine.halves", arguments -> Checks.halves(controller(arguments), arguments));
        commands.put("engine.check", arguments -> Checks.check(controller(arguments), arguments));
        commands.put("engine.open", Opening::open);
        commands.put("filter", Filter::evaluate);
        commands.put("load.send", Load::send);
        commands.put("load.push", Load::push);
        commands.put("remote.produce", Remote::produce);
        commands.put("remote.push", Remote::push);
        commands.put("remote.lite_pull", Remote::litePull);
        commands.put("remote.admin", Remote::admin);
    }

    /** Remembers what a command made; later commands name it by the handle in its facts. */
    private JSONObject hold(Handled made) {
        int handle = handles.incrementAndGet();
        held.put(handle, made);
        return made.facts().fluentPut("handle", handle);
    }

    private BrokerController controller(JSONObject arguments) {
        return held(arguments, Broker.class).controller();
    }

    private <T> T held(JSONObject arguments, Class<T> kind) {
        return kind.cast(found(held.get(arguments.getIntValue("handle")), arguments));
    }

    private <T> T release(JSONObject arguments, Class<T> kind) {
        return kind.cast(found(held.remove(arguments.getIntValue("handle")), arguments));
    }

    private static Object found(Object thing, JSONObject arguments) {
        if (thing == null) {
            throw new IllegalArgumentException("no such handle: " + arguments);
        }
        return thing;
    }

    /** Something that outlives its command. */
    interface Handled {
        JSONObject facts();
    }

    private void answer(JSONObject line) {
        JSONObject reply = new JSONObject().fluentPut("id", line.get("id"));
        try {
            Command command = commands.get(line.getString("command"));
            if (command == null) {
                throw new IllegalArgumentException("no such command: " + line.getString("command"));
            }
            reply.put("result", command.run(line.getJSONObject("arguments")));
        } catch (Throwable problem) {
            StringWriter trace = new StringWriter();
            problem.printStackTrace(new PrintWriter(trace));
            reply.fluentPut("error", problem.toString()).fluentPut("trace", trace.toString());
        }
        synchronized (out) {
            out.println(JSON.toJSONString(reply, JSONWriter.Feature.WriteMapNullValue, JSONWriter.Feature.WriteNonStringKeyAsString));
            out.flush();
        }
    }

    private void converse() throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            threads.execute(() -> answer(command));
        }
    }

    public static void main(String[] none) throws IOException {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        // Whatever RocketMQ prints must not stand between replies.
        System.setOut(System.err);
        // RocketMQ's own start classes set this; without it a broker registers no topics.
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        new Peer(out).converse();
        Runtime.getRuntime().halt(0);
    }
}
