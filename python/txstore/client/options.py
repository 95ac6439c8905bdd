"""The options of `connect`: RocketMQ's names in snake_case, with the defaults of its clients.

In:     keyword arguments.
Out:    one frozen, checked `ConnectConfig`.
Always: everything that waits has a time limit here.
By hand: checking the values, because the core wheel needs no other package.
"""

import dataclasses
import difflib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from txstore.config import Duration, as_timedelta
from txstore.errors import InvalidOptionError
from txstore.remoting.signing import Credentials

__all__ = ["ConnectConfig", "ConnectOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectConfig:
    """The options of a connection. Durations accept a `timedelta` or a number of seconds, and are kept as seconds.

    Raises InvalidOptionError for a value of the wrong type or out of its range.
    """

    connect_timeout: Duration = 3.0
    """How long opening one connection may take (connectTimeoutMillis)."""
    request_timeout: Duration = 3.0
    """How long one response may take, except for sends and pulls (mqClientApiTimeout)."""
    send_msg_timeout: Duration = 3.0
    """How long a send may take, including retries (sendMsgTimeout)."""
    end_timeout: Duration = 3.0
    """How long a commit or rollback may take. After that, a check settles the transaction."""
    admin_timeout: Duration = 60.0
    """How long an administrative call may take; some read the whole log. Not an option of RocketMQ."""
    retry_times_when_send_failed: int = 2
    """How often a failed send is retried (retryTimesWhenSendFailed; 0 to 100)."""
    heart_beat_broker_interval: Duration = 30.0
    """How often each broker gets a heartbeat (heartbeatBrokerInterval)."""
    poll_name_server_interval: Duration = 30.0
    """How often routes are refreshed (pollNameServerInterval)."""
    rebalance_interval: Duration = 20.0
    """How often a group's members are queried, in addition to notifications of changes (rebalance.waitInterval)."""
    persist_consumer_offset_interval: Duration = 5.0
    """How often acknowledged offsets are reported to the brokers (persistConsumerOffsetInterval)."""
    broker_suspend_max_time: Duration = 15.0
    """How long a broker may hold a pull until a message arrives (brokerSuspendMaxTimeMillis)."""
    pull_timeout: Duration = 30.0
    """How long the response to a pull may take (consumerTimeoutMillisWhenSuspend). Must exceed
    `broker_suspend_max_time`."""
    lock_interval: Duration = 20.0
    """How often an orderly consumer renews its locks; a broker keeps them for 60 s."""
    connect_in_background: bool = False
    """Whether `connect` returns although no broker answers, and connects when one does. Until then, whatever needs the
    broker raises BrokerUnreachableError. Not an option of RocketMQ."""
    reconnect_back_off: Duration = 0.1
    """The pause before a lost connection is opened again; doubled after each failure. Not an option of RocketMQ."""
    reconnect_back_off_max: Duration = 5.0
    """The longest such pause. Not an option of RocketMQ."""
    pull_batch_size: int = 32
    """The most messages of one pull (pullBatchSize; 1 to 1,024)."""
    pull_threshold_for_queue: int = 256
    """How many messages are pulled ahead per queue (pullThresholdForQueue; 1 to 65,536)."""
    default_topic_queue_nums: int = 4
    """The queues of a topic that the first send creates (defaultTopicQueueNums; 1 to 1,024)."""
    check_threads: int = 4
    """Threads that answer checks (checkThreadPoolMaxSize; 1 to 256)."""
    check_time_limit: Duration = 30.0
    """How long one check may take before it counts as UNKNOWN. Not an option of RocketMQ."""
    tls: ssl.SSLContext | bool | str | os.PathLike[str] = False
    """TLS (tls.enable). True trusts the system's certificate authorities, a PEM file the ones in it. Pass an SSLContext
    for a client certificate or other rules."""
    access_key: str | None = None
    """The name of an account of the broker (RocketMQ's ACL). All requests are signed with it."""
    secret_key: str | None = dataclasses.field(default=None, repr=False)
    """The account's secret."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name in _KEYS:
                _check_key(field.name, getattr(self, field.name))
            elif field.name == "connect_in_background":
                if not isinstance(self.connect_in_background, bool):
                    raise _invalid(field.name, f"expected a bool, got {self.connect_in_background!r}")
            elif field.name == "tls":
                object.__setattr__(self, "tls", _tls(self.tls))
            elif field.name in _NUMBERS:
                _check_number(field.name, getattr(self, field.name), *_NUMBERS[field.name])
            else:
                object.__setattr__(self, field.name, _seconds(field.name, getattr(self, field.name)))
        if (self.access_key is None) != (self.secret_key is None):
            missing = "access_key" if self.access_key is None else "secret_key"
            raise _invalid(missing, "is missing\nhint: pass both access_key and secret_key")
        if self.seconds("pull_timeout") <= self.seconds("broker_suspend_max_time"):
            raise _invalid(
                "pull_timeout",
                f"must exceed broker_suspend_max_time ({self.broker_suspend_max_time} s), got {self.pull_timeout} s",
            )

    def seconds(self, option: str) -> float:
        """Returns a duration in seconds."""
        value = getattr(self, option)
        assert isinstance(value, float)
        return value

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context; None for plain connections."""
        return self.tls if isinstance(self.tls, ssl.SSLContext) else None

    @property
    def credentials(self) -> Credentials | None:
        """The account that signs requests; None if they are not signed."""
        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(self.access_key, self.secret_key)

    @classmethod
    def from_environment(cls) -> "ConnectConfig":
        """Returns the defaults with the account and the TLS of TXSTORE_ACCESS_KEY, TXSTORE_SECRET_KEY, TXSTORE_TLS."""
        variables = {"access_key": "TXSTORE_ACCESS_KEY", "secret_key": "TXSTORE_SECRET_KEY", "tls": "TXSTORE_TLS"}
        return cls.from_options(
            {option: os.environ[name] for option, name in variables.items() if os.environ.get(name)}
        )

    @classmethod
    def from_options(cls, options: Mapping[str, object], base: "ConnectConfig | None" = None) -> "ConnectConfig":
        """Returns `base`, or the defaults, with `options` replaced. Raises InvalidOptionError for an unknown option."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else "help(txstore.ConnectConfig) lists them"
                raise InvalidOptionError(f"unknown option {name}\nhint: {hint}", option=name)
        return dataclasses.replace(base if base is not None else cls(), **options)  # type: ignore[arg-type]


class ConnectOptions(TypedDict, total=False):
    """The options of `txstore.connect`. `ConnectConfig` describes them under the same names."""

    connect_timeout: Duration
    request_timeout: Duration
    send_msg_timeout: Duration
    end_timeout: Duration
    admin_timeout: Duration
    retry_times_when_send_failed: int
    heart_beat_broker_interval: Duration
    poll_name_server_interval: Duration
    rebalance_interval: Duration
    persist_consumer_offset_interval: Duration
    broker_suspend_max_time: Duration
    pull_timeout: Duration
    lock_interval: Duration
    connect_in_background: bool
    reconnect_back_off: Duration
    reconnect_back_off_max: Duration
    pull_batch_size: int
    pull_threshold_for_queue: int
    default_topic_queue_nums: int
    check_threads: int
    check_time_limit: Duration
    tls: ssl.SSLContext | bool | str | os.PathLike[str]
    access_key: str | None
    secret_key: str | None


_DAY = timedelta(days=1)
_KEYS = ("access_key", "secret_key")
_NUMBERS: dict[str, tuple[int, int]] = {
    "retry_times_when_send_failed": (0, 100),
    "pull_batch_size": (1, 1024),
    "pull_threshold_for_queue": (1, 65_536),
    "default_topic_queue_nums": (1, 1024),
    "check_threads": (1, 256),
}


def _seconds(option: str, value: Duration) -> float:
    span = as_timedelta(value, option)
    if not timedelta(milliseconds=1) <= span <= _DAY:
        raise _invalid(option, f"must be between 1 ms and 1 day, got {span.total_seconds():g} s")
    return span.total_seconds()


def _tls(given: object) -> ssl.SSLContext | bool:
    """Returns the TLS context for the option's value, or False for plain connections."""
    if isinstance(given, ssl.SSLContext) or given is False:
        return given
    if given is True:
        return ssl.create_default_context()
    if not isinstance(given, str | os.PathLike):
        raise _invalid("tls", f"expected a bool, a PEM file or an ssl.SSLContext, got {given!r}")
    try:
        return ssl.create_default_context(cafile=given)
    except (OSError, ssl.SSLError) as error:
        why = "it contains no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise _invalid(
            "tls", f"{os.fspath(given)!r} cannot be used: {why}\nhint: a PEM file with certificates"
        ) from error


def _check_key(option: str, given: object) -> None:
    if given is not None and (not isinstance(given, str) or not given):
        raise _invalid(
            option, f"expected a non-empty str, got {type(given).__name__}\nhint: the broker's operator has it"
        )


def _check_number(option: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _invalid(option, f"expected a whole number from {low} to {high}, got {value!r}")


def _invalid(option: str, what: str) -> InvalidOptionError:
    return InvalidOptionError(f"option {option}: {what}", option=option)
