"""Triggers: what a stream accepts of its options, and the limits of its micro-batches.

In:     options.
Out:    Spark's limit, or an error that names the option.
Not here: where a micro-batch ends (`stream.py`, `network/stream.py`).
"""

from __future__ import annotations

from txstore.errors import InvalidOptionError
from txstore.spark.options import ReadOptions
from txstore.spark.versions import (
    LIMITS,
    SPARK_VERSION,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

__all__ = ["check_stream", "default_limit"]


def default_limit(options: ReadOptions) -> ReadLimit:
    """Returns the limit of a micro-batch. Of several, Spark passes on one."""
    if options.trigger_rows_max is not None:
        return ReadMaxRows(options.trigger_rows_max)
    if options.trigger_bytes_max is not None:
        return ReadMaxBytes(options.trigger_bytes_max)
    if options.trigger_rows_min is not None:
        return ReadMinRows(options.trigger_rows_min)
    return ReadAllAvailable()


def check_stream(options: ReadOptions) -> None:
    """Raises InvalidOptionError for what a stream does not accept."""
    if options.view == "transactions":
        raise InvalidOptionError(
            "option view: the view transactions needs the whole log\nhint: stream the views halves, ops and commitlog",
            option="view",
        )
    for option, is_given in (
        ("endingPhysicalOffset", options.end_physical_offset is not None),
        ("endingTimestamp", options.end_store_ms is not None),
        *((limit.option, True) for limit in options.limits.ending),
    ):
        if is_given:
            raise InvalidOptionError(f"option {option}: a stream has no end", option=option)
    if not LIMITS:
        _refuse_limits(options)
    rows, least = options.trigger_rows_max, options.trigger_rows_min
    if rows is not None and least is not None and least > rows:
        raise InvalidOptionError(
            f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {rows}",
            option="minOffsetsPerTrigger",
        )
    if rows is not None and rows < len(options.paths):
        raise InvalidOptionError(
            f"option maxOffsetsPerTrigger: must be at least 1 for each of the {len(options.paths)} stores, got {rows}",
            option="maxOffsetsPerTrigger",
        )


def _refuse_limits(options: ReadOptions) -> None:
    for option, value in (
        ("maxOffsetsPerTrigger", options.trigger_rows_max),
        ("maxBytesPerTrigger", options.trigger_bytes_max),
        ("minOffsetsPerTrigger", options.trigger_rows_min),
    ):
        if value is not None:
            raise InvalidOptionError(
                f"option {option}: Spark {SPARK_VERSION} cannot limit a micro-batch of a Python source; "
                "Spark 4.2 is the first that can\nhint: omit it; a micro-batch then reads up to the end of the log",
                option=option,
            )
    if options.limits.depends_on_time():
        option = options.limits.starting[0].option
        raise InvalidOptionError(
            f"option {option}: Spark {SPARK_VERSION} does not tell a Python source where its query began; "
            "Spark 4.2 is the first that does\n"
            'hint: queue offsets like {"orders":{"0":23}}, or startingTimestamp',
            option=option,
        )
