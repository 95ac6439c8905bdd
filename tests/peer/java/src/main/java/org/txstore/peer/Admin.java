package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What an operator does: a discarded transaction is taken up again. */
final class Admin {
    private Admin() {
    }

    /** `message_id`: the offset id of the discarded copy, or the transaction's unique id. */
    static Object resume(JSONObject arguments) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(arguments.getString("names"));
        admin.setInstanceName("admin-" + System.nanoTime());
        admin.setVipChannelEnabled(false);
        admin.start();
        try {
            return admin.resumeCheckHalfMessage("TRANS_CHECK_MAX_TIME_TOPIC", arguments.getString("message_id"));
        } finally {
            try (Hurry hurry = new Hurry()) {
                admin.shutdown();
            }
        }
    }
}
