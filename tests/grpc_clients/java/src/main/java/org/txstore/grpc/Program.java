package org.txstore.grpc;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * RocketMQ's Java client, driven by JSON lines: one command a line on stdin, one reply a line on stdout, each with the
 * id of its command. Commands run concurrently; the end of stdin ends the process.
 */
public final class Program {
    interface Command {
        Object run(JSONObject facts) throws Throwable;
    }

    /** A client with what it has seen. */
    record Held(Closeable client, Object seen) {
    }

    // A refusal's code is only in its text.
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");
    private final PrintStream out;
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final Map<String, Command> commands = new ConcurrentHashMap<>();
    private final Map<Integer, Held> clients = new ConcurrentHashMap<>();
    private final AtomicInteger handles = new AtomicInteger();

    private Program(PrintStream out) {
        this.out = out;
        Consumers consumers = new Consumers();
        commands.put("producer.start", facts -> hold(Producers.start(facts)));
        commands.put("producer.send", facts -> Producers.send(held(facts), facts));
        commands.put("producer.transact", facts -> Producers.transact(held(facts), facts));
        commands.put("producer.recall", facts -> Producers.recall(held(facts), facts));
        commands.put("producer.checks", facts -> Producers.checks(held(facts)));
        commands.put("simple.start", facts -> hold(Consumers.simple(facts)));
        commands.put("simple.receive", facts -> consumers.receive(held(facts), facts));
        commands.put("simple.ack", facts -> consumers.ack(held(facts), facts));
        commands.put("simple.change", facts -> consumers.change(held(facts), facts));
        commands.put("push.start", facts -> hold(Consumers.push(facts)));
        commands.put("push.received", facts -> Consumers.received(held(facts)));
        commands.put("load.send", facts -> Load.send(held(facts), facts));
        commands.put("load.receive", facts -> Load.receive(held(facts), facts));
        commands.put("stop", facts -> {
            clients.remove(facts.getIntValue("handle")).client().close();
            return null;
        });
    }

    private int hold(Held made) {
        int handle = handles.incrementAndGet();
        clients.put(handle, made);
        return handle;
    }

    private Held held(JSONObject facts) {
        return clients.get(facts.getIntValue("handle"));
    }

    private void answer(JSONObject facts) {
        JSONObject reply = new JSONObject().fluentPut("id", facts.get("id"));
        try {
            reply.put("result", commands.get(facts.getString("command")).run(facts));
        } catch (Throwable problem) {
            reply.fluentPut("error", problem.toString()).fluentPut("code", codeOf(problem));
        }
        synchronized (out) {
            out.println(JSON.toJSONString(reply, JSONWriter.Feature.WriteMapNullValue));
            out.flush();
        }
    }

    private static Integer codeOf(Throwable problem) {
        for (Throwable cause = problem; cause != null; cause = cause.getCause()) {
            Matcher found = CODE.matcher(String.valueOf(cause.getMessage()));
            if (found.find()) {
                return Integer.valueOf(found.group(1));
            }
        }
        return null;
    }

    public static void main(String[] none) throws IOException {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        // What the client prints must not appear between replies.
        System.setOut(System.err);
        Program program = new Program(out);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject facts = JSON.parseObject(line);
            program.threads.execute(() -> program.answer(facts));
        }
        Runtime.getRuntime().halt(0);
    }
}
