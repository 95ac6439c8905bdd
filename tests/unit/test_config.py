"""Guards options: a wrong option is found when the store is opened, and the error says what was meant."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstore.config import BrokerConfig, FlushDiskType, milliseconds
from txstore.errors import InvalidOptionError


def test_defaults_are_rocketmqs() -> None:
    config = BrokerConfig()
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.transaction_timeout == timedelta(seconds=6)
    assert config.transaction_check_interval == timedelta(seconds=30)
    assert config.transaction_check_max == 15
    assert config.transaction_op_msg_max_size == 4096
    assert config.file_reserved_time == timedelta(hours=72)
    assert config.max_message_size == 4194304
    assert config.flush_interval_commit_log == timedelta(milliseconds=500)


def test_half_messages_are_durable_by_default_unlike_in_rocketmq() -> None:
    assert BrokerConfig().transaction_flush_disk_type is FlushDiskType.SYNC_FLUSH
    config = BrokerConfig.from_options({"transaction_flush_disk_type": "ASYNC_FLUSH"})
    assert config.transaction_flush_disk_type is FlushDiskType.ASYNC_FLUSH


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("transaction_time_out", "transaction_timeout"),
        ("flushDiskType", "flush_disk_type"),
        ("transactionFlushDiskType", "transaction_flush_disk_type"),
        ("check_thread", "check_threads"),
    ],
)
def test_P3_an_unknown_option_names_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"did you mean {meant}"):
        BrokerConfig.from_options({wrong: 1})


def test_unknown_option_without_a_near_name_gets_no_guess() -> None:
    with pytest.raises(InvalidOptionError, match="the options are flush_disk_type, "):
        BrokerConfig.from_options({"zzz": 1})


@pytest.mark.parametrize(
    "options",
    [
        {"flush_disk_type": "MAYBE_FLUSH"},
        {"flush_disk_type": None},
        {"transaction_flush_disk_type": "MAYBE_FLUSH"},
        {"transaction_flush_disk_type": None},
        {"transaction_check_max": 0},
        {"transaction_check_max": 1.5},
        {"transaction_check_max": True},
        {"transaction_check_max": "15"},
        {"transaction_timeout": -1},
        {"transaction_timeout": float("nan")},
        {"transaction_timeout": float("inf")},
        {"transaction_timeout": 1e300},
        {"transaction_timeout": "6s"},
        {"transaction_check_interval": 0},
        {"transaction_check_back_off": 0.5},
        {"transaction_check_back_off": float("nan")},
        {"mapped_file_size_consume_queue": 21},
        {"mapped_file_size_commit_log": 2**31},
        {"max_message_size": 0},
        {"reject_late_end": 1},
        {"enabled_append_prop_crc": "yes"},
        {"broker_host": 7},
        {"broker_port": -1},
        {"check_threads": 0},
    ],
    ids=str,
)
def test_P2_value_out_of_range_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))) as caught:
        BrokerConfig.from_options(options)
    assert caught.value.option == next(iter(options))


@given(st.integers(0, 30 * 86400 * 1000))
def test_seconds_and_timedelta_are_equivalent(ms: int) -> None:
    span = timedelta(milliseconds=ms)
    by_number = BrokerConfig(transaction_timeout=span.total_seconds())
    assert by_number == BrokerConfig(transaction_timeout=span)
    assert milliseconds(by_number.transaction_timeout) == ms


def test_options_override_a_config_without_changing_it() -> None:
    base = BrokerConfig(check_threads=9)
    over = BrokerConfig.from_options({"transaction_check_max": 3}, base)
    assert (over.check_threads, over.transaction_check_max) == (9, 3)
    assert base.transaction_check_max == 15
    with pytest.raises(dataclasses.FrozenInstanceError):
        base.check_threads = 1  # type: ignore[misc]


def test_config_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="expected a BrokerConfig, got dict") as caught:
        BrokerConfig.from_options({}, {"check_threads": 9})  # type: ignore[arg-type]
    assert caught.value.option == "config"
