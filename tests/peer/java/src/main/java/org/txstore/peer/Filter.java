package org.txstore.peer;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/** The broker's SQL92 filter: parses expressions and evaluates them on properties, as its pulls do. */
final class Filter {
    private Filter() {}

    /** For each case: null if the broker refuses the expression, else whether it delivers the message. */
    static List<Boolean> evaluate(JSONObject arguments) {
        List<Boolean> results = new ArrayList<>();
        for (Object one : arguments.getJSONArray("cases")) {
            JSONObject given = (JSONObject) one;
            Map<String, String> properties = new HashMap<>();
            given.getJSONObject("properties").forEach((name, value) -> properties.put(name, value.toString()));
            results.add(evaluate(given.getString("sql"), properties));
        }
        return results;
    }

    private static Boolean evaluate(String sql, Map<String, String> properties) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(sql);
        } catch (Throwable refused) {
            return null;
        }
        try {
            return expression.evaluate(new MessageEvaluationContext(properties)) == Boolean.TRUE;
        } catch (Throwable failed) {
            return false;
        }
    }
}
