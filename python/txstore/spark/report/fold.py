"""Fold: turns the traces in the log into one row per transaction, by the rule of docs/internals/transactions.md in
Spark SQL.

In:     rows of the view `traces`.
Out:    transactions, with the parts from which a later run folds them again.
Always: two shuffles, by half queue offset (ops name nothing else) and by identity. Each group is as small as one
        transaction with its copies. The result equals that of the engine's view `transactions`, which uses one task.
Not here: what is suspicious, files.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

from txstore._native import Scan
from txstore.report.summary import HALF_MISSING

__all__ = ["COLUMNS", "Traces", "fold", "read_traces", "unfold"]

# The columns of the view `transactions`, in its order.
COLUMNS = Scan("", view="transactions").columns

_HALF = """identity transaction_id producer_group real_topic real_queue_id check_times half_queue_offset
physical_offset store_timestamp""".split()
_NAMED = ["trace", *_HALF]
_END = "trace identity physical_offset prepared_transaction_offset store_timestamp".split()


class Traces(NamedTuple):
    """Rows of the view `traces`: those that name a half by queue offset, and those that name it by physical offset."""

    named: DataFrame
    ends: DataFrame

    def union(self, other: Traces) -> Traces:
        """Returns these rows and others."""
        return Traces(self.named.unionByName(other.named), self.ends.unionByName(other.ends))


def read_traces(spark: SparkSession, path: str, **options: object) -> Traces:
    """Reads the traces of a store, or of a range of its log, in two reads that each take only what they need."""
    reader = spark.read.format("txstore").options(**{name: str(value) for name, value in options.items()})
    reader = reader.option("view", "traces")
    named = reader.option("columns", ",".join(_NAMED)).option("transactionTypes", "prepared,none").load(path)
    ends = reader.option("columns", ",".join(_END)).option("transactionTypes", "commit,none").load(path)
    return Traces(named.where("trace IN ('half', 'op')"), ends.where("trace IN ('final', 'discarded')"))


def fold(traces: Traces, log_first: int, half_progress: int = 0) -> DataFrame:
    """Returns one row for each transaction: `COLUMNS` and `parts`; also rows of the state `HALF_MISSING`.

    `log_first` is the first physical offset left in the log. `half_progress` is how far a broker has finished the half
    queue, 0 in a log that txstore alone wrote.
    """
    every = _halves(traces.named).unionByName(_ends(traces.ends), allowMissingColumns=True)
    # A half without group or id has no identity. It is grouped by physical offset (`place`) with what names that.
    alone = F.when(F.col("identity").isNull(), F.col("place")).alias("alone")
    lists = {"copies": "copy", "finals": "final", "discards": "discard", "lost": "lost_op"}
    grouped = every.groupBy("identity", alone).agg(
        *(F.array_sort(F.collect_list(one)).alias(name) for name, one in lists.items())
    )
    aimed = grouped.select(
        "copies", "lost", F.expr(_aimed("finals", f"e.place < {log_first}")), F.expr(_aimed("discards", "true"))
    )
    parts = aimed.withColumn("starts", F.expr(_STARTS)).select(F.explode(F.expr(_PARTS)).alias("parts"))
    return _rows(parts, half_progress)


def unfold(transactions: DataFrame) -> Traces:
    """Returns the traces of transactions, so that they can be folded again with what came after."""
    parts = transactions.select("parts.*")
    copies = parts.select(F.explode("copies").alias("copy"))
    halves = copies.select(F.lit("half").alias("trace"), *(F.col(f"copy.{name}") for name in _HALF))
    ops = copies.select(F.lit("op").alias("trace"), "copy.half_queue_offset", F.explode("copy.ops").alias("op"))
    ops = ops.select("trace", "half_queue_offset", F.col("op.at").alias("physical_offset"), "op.store_timestamp")
    ends = [_unfolded(parts, name, trace) for name, trace in (("finals", "final"), ("discards", "discarded"))]
    return Traces(halves.unionByName(ops, allowMissingColumns=True), ends[0].unionByName(ends[1]))


def _unfolded(parts: DataFrame, name: str, trace: str) -> DataFrame:
    ends = parts.select(F.col("copies")[0]["identity"].alias("identity"), F.explode(name).alias("end"))
    return ends.select(
        F.lit(trace).alias("trace"), "identity", F.col("end.at").alias("physical_offset"),
        F.col("end.place").alias("prepared_transaction_offset"), F.col("end.store_timestamp").alias("store_timestamp"),
    )  # fmt: skip


def _halves(named: DataFrame) -> DataFrame:
    """Returns halves, each with the ops after it that name it, and ops whose half is missing."""
    facts = F.struct("physical_offset", *(name for name in _HALF if name != "physical_offset"))
    op = F.struct(F.col("physical_offset").alias("at"), "store_timestamp")
    grouped = named.groupBy("half_queue_offset").agg(
        # If a queue offset was used twice, the queue leads to the first half, and so does an op.
        F.min(F.when(F.col("trace") == "half", facts)).alias("half"),
        F.array_sort(F.collect_set(F.when(F.col("trace") == "op", op))).alias("ops"),
    )
    after = F.expr("filter(ops, o -> o.at > half.physical_offset)").alias("ops")
    is_lost = F.col("half").isNull()
    return grouped.select(
        F.col("half.identity").alias("identity"),
        # For a lost op, a physical offset that no record has.
        F.when(is_lost, -2 - F.col("half_queue_offset")).otherwise(F.col("half.physical_offset")).alias("place"),
        F.when(~is_lost, F.struct("half.*", after)).alias("copy"),
        F.when(is_lost, F.struct("half_queue_offset", "ops")).alias("lost_op"),
    )


def _ends(ends: DataFrame) -> DataFrame:
    """Returns finals and discarded copies, each with the physical offset of the half that it names."""
    place = F.col("prepared_transaction_offset").alias("place")
    end = F.struct(F.col("physical_offset").alias("at"), place, "store_timestamp")
    is_final = F.col("trace") == "final"
    return ends.select("identity", place, F.when(is_final, end).alias("final"), F.when(~is_final, end).alias("discard"))


def _aimed(name: str, newest: str) -> str:
    """Returns SQL that adds to each end the index of its copy: the one at its physical offset, or, if `newest` holds,
    the newest before it; -1 if there is none."""
    there = "CAST(array_position(transform(copies, c -> c.physical_offset), e.place) AS INT) - 1"
    last = "size(filter(copies, c -> c.physical_offset < e.at)) - 1"
    target = f"CASE WHEN {there} >= 0 AND e.place < e.at THEN {there} WHEN {newest} THEN {last} ELSE -1 END"
    return f"""transform({name}, e -> named_struct('at', e.at, 'place', e.place,
        'store_timestamp', e.store_timestamp, 'target', {target})) AS {name}"""


# Where transactions begin among the copies of one identity: a sent half begins a new one if anything has ended the one
# before it; a half that a broker put back joins it.
_STARTS = """
CASE WHEN size(copies) < 2 THEN slice(array(0), 1, size(copies)) ELSE
aggregate(sequence(1, size(copies) - 1), array(0), (starts, i) ->
    IF(copies[i].check_times <= 0 AND exists(
        concat(
            flatten(transform(copies, (c, j) -> transform(c.ops, o -> named_struct('at', o.at, 'target', j)))),
            transform(finals, e -> named_struct('at', e.at, 'target', e.target)),
            transform(discards, e -> named_struct('at', e.at, 'target', e.target))),
        e -> e.at < copies[i].physical_offset AND e.target >= starts[size(starts) - 1]),
    concat(starts, array(i)), starts))
END
"""
_NEXT = "coalesce(get(starts, k + 1), size(copies))"
_NO_COPIES = "slice(copies, 1, 0)"
# A transaction's copies and what names them; then, without copies, what names none.
_PARTS = f"""
filter(concat(
    transform(starts, (s, k) -> named_struct(
        'copies', slice(copies, s + 1, {_NEXT} - s),
        'finals', filter(finals, e -> e.target >= s AND e.target < {_NEXT}),
        'discards', filter(discards, e -> e.target >= s AND e.target < {_NEXT}),
        'lost', slice(lost, 1, 0))),
    array(named_struct(
        'copies', {_NO_COPIES},
        'finals', filter(finals, e -> e.target < 0),
        'discards', filter(discards, e -> e.target < 0),
        'lost', lost))),
    p -> size(p.copies) + size(p.finals) + size(p.discards) + size(p.lost) > 0)
"""


def _rows(parts: DataFrame, half_progress: int) -> DataFrame:
    """Returns the columns of each part."""
    seen = parts.select(
        "parts",
        F.expr("get(parts.copies, 0)").alias("first"),
        F.expr("get(parts.copies, size(parts.copies) - 1)").alias("newest"),
        F.expr(
            "array_distinct(array_sort(flatten(concat(transform(parts.copies, c -> c.ops), "
            "transform(parts.lost, l -> l.ops)))))"
        ).alias("ops"),
        F.expr("get(reverse(filter(parts.copies, c -> c.check_times <= 0)), 0).half_queue_offset").alias("sent"),
    )  # fmt: skip
    told = seen.select("*", F.expr(_state(half_progress)).alias("state"), F.expr(_ENDS).alias("all_ends"))
    columns = {
        "transaction_id": "first.transaction_id",
        "producer_group": "first.producer_group",
        "real_topic": "first.real_topic",
        "real_queue_id": "IF(first IS NULL, NULL, coalesce(newest.real_queue_id, 0))",
        "state": "state",
        "prepared_timestamp": "first.store_timestamp",
        "first_check_timestamp": "get(filter(parts.copies, c -> c.check_times > 0), 0).store_timestamp",
        "ended_timestamp": "IF(state IN ('pending', 'finished_unknown'), NULL, array_min(all_ends).store_timestamp)",
        "check_times": "coalesce(array_max(transform(parts.copies, c -> c.check_times)), 0)",
        "half_queue_offsets": "concat(transform(parts.copies, c -> c.half_queue_offset), "
        "transform(parts.lost, l -> l.half_queue_offset))",
        "half_physical_offsets": "transform(parts.copies, c -> c.physical_offset)",
        "final_physical_offsets": "transform(parts.finals, e -> e.at)",
        "discarded_physical_offsets": "transform(parts.discards, e -> e.at)",
        "op_physical_offsets": "transform(ops, o -> o.at)",
        "parts": "parts",
    }
    return told.select(*(F.expr(text).alias(name) for name, text in columns.items()))


_ENDS = """concat(ops, transform(concat(parts.finals, parts.discards),
    e -> named_struct('at', e.at, 'store_timestamp', e.store_timestamp)))"""


def _state(half_progress: int) -> str:
    """Returns SQL of the outcome rule. An op decides if it names the last sent half or a copy after it."""
    return f"""
CASE WHEN first IS NULL THEN '{HALF_MISSING}'
    WHEN size(parts.finals) > 0 THEN 'committed'
    WHEN size(parts.discards) > 0 THEN 'discarded'
    WHEN exists(parts.copies, c -> size(c.ops) > 0 AND c.half_queue_offset >= coalesce(sent, first.half_queue_offset))
        THEN 'rolled_back'
    WHEN newest.half_queue_offset < {half_progress} THEN 'finished_unknown'
    ELSE 'pending' END
"""
