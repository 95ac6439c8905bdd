package org.txstore.peer;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What an operator does by RocketMQ's admin API, where its command line has no word for it. */
final class Admin {
    private Admin() {
    }

    private interface Work {
        Object of(DefaultMQAdminExt admin) throws Exception;
    }

    private static Object as(JSONObject arguments, Work work) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(arguments.getString("names"));
        admin.setInstanceName("admin-" + System.nanoTime());
        admin.setVipChannelEnabled(false);
        admin.start();
        try {
            return work.of(admin);
        } finally {
            try (Hurry hurry = new Hurry()) {
                admin.shutdown();
            }
        }
    }

    /** A discarded transaction is taken up again. `message_id`: the offset id of the discarded copy, or its unique id. */
    static Object resume(JSONObject arguments) throws Exception {
        return as(arguments, admin ->
            admin.resumeCheckHalfMessage("TRANS_CHECK_MAX_TIME_TOPIC", arguments.getString("message_id")));
    }

    /** How far each consumer of a group is, by its own word: [client id, queue id, offset]. */
    static Object status(JSONObject arguments) throws Exception {
        return as(arguments, admin -> {
            JSONArray rows = new JSONArray();
            admin.getConsumeStatus(arguments.getString("topic"), arguments.getString("group"), "").forEach(
                (client, queues) -> queues.forEach(
                    (queue, offset) -> rows.add(new JSONArray(client, queue.getQueueId(), offset))));
            return rows;
        });
    }
}
