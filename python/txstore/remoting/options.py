"""Options of a connection: RocketMQ's names in snake_case, with its clients' defaults.

In: keywords as a user writes them. Out: one frozen `ConnectOptions`, checked. Always: whatever waits has a limit here.
Not here: what a broker decides (topics, retention, when checks are due).
"""

import dataclasses
import difflib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from txstore.config import Duration, as_timedelta
from txstore.errors import InvalidOptionError
from txstore.remoting.signing import Credentials

__all__ = ["ConnectOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectOptions:
    """Every setting of a connection. Durations accept a `timedelta` or a number of seconds, and are kept as seconds.

    Raises InvalidOptionError for a value of the wrong type or out of its range.
    """

    connect_time_out: Duration = 3.0
    """How long opening one connection may take (connectTimeoutMillis)."""
    request_time_out: Duration = 3.0
    """How long one answer may take, but of sends and pulls (mqClientApiTimeout)."""
    send_msg_time_out: Duration = 3.0
    """How long a send may take, with all that is tried again (sendMsgTimeout)."""
    end_time_out: Duration = 3.0
    """How long committing or rolling back may take; afterwards a check settles it."""
    retry_times_when_send_failed: int = 2
    """How often a send is tried again (retryTimesWhenSendFailed; 0 to 100)."""
    heart_beat_broker_interval: Duration = 30.0
    """How often each broker is told who is here (heartbeatBrokerInterval)."""
    poll_name_server_interval: Duration = 30.0
    """How often routes are asked for again (pollNameServerInterval)."""
    rebalance_interval: Duration = 20.0
    """How often a group's members are asked for, beside being told of changes (rebalance.waitInterval)."""
    persist_consumer_offset_interval: Duration = 5.0
    """How often acknowledged offsets go to the brokers (persistConsumerOffsetInterval)."""
    broker_suspend_max_time: Duration = 15.0
    """How long a broker may hold a pull until a message comes (brokerSuspendMaxTimeMillis)."""
    pull_time_out: Duration = 30.0
    """How long the answer to a pull may take (consumerTimeoutMillisWhenSuspend); more than a broker may hold it."""
    lock_interval: Duration = 20.0
    """How often an orderly consumer renews its locks; a broker keeps them for 60 s."""
    reconnect_back_off: Duration = 0.1
    """Ours: the pause before a lost connection is opened again; doubled each time it fails."""
    reconnect_back_off_max: Duration = 5.0
    """Ours: the longest such pause."""
    pull_batch_size: int = 32
    """Messages of one pull (pullBatchSize; 1 to 1,024)."""
    pull_threshold_for_queue: int = 256
    """Messages that are pulled ahead of each queue (pullThresholdForQueue; 1 to 65,536)."""
    default_topic_queue_nums: int = 4
    """Queues of a topic that the first send makes (defaultTopicQueueNums; 1 to 1,024)."""
    check_threads: int = 4
    """Threads that answer checks at one time (checkThreadPoolMaxSize; 1 to 256)."""
    check_time_limit: Duration = 30.0
    """Ours: how long one check may take before it counts as UNKNOWN."""
    tls: ssl.SSLContext | bool | str | os.PathLike[str] = False
    """TLS (tls.enable): True believes whom the system believes; a PEM file: whom that names; or a context of one's own,
    for a client's certificate or other rules."""
    access_key: str | None = None
    """An account of the broker's (RocketMQ's ACL): all requests are signed in its name."""
    secret_key: str | None = dataclasses.field(default=None, repr=False)
    """The account's secret."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name in _KEYS:
                _check_key(field.name, getattr(self, field.name))
            elif field.name == "tls":
                object.__setattr__(self, "tls", _tls(self.tls))
            elif field.name in _NUMBERS:
                _check_number(field.name, getattr(self, field.name), *_NUMBERS[field.name])
            else:
                object.__setattr__(self, field.name, _seconds(field.name, getattr(self, field.name)))
        if (self.access_key is None) != (self.secret_key is None):
            missing = "access_key" if self.access_key is None else "secret_key"
            raise _invalid(missing, "is missing\nhint: an account takes both, access_key and secret_key")
        if self.seconds("pull_time_out") <= self.seconds("broker_suspend_max_time"):
            raise _invalid("pull_time_out", "must be longer than broker_suspend_max_time, or no long pull ends well")

    def seconds(self, option: str) -> float:
        """A duration in seconds."""
        value = getattr(self, option)
        assert isinstance(value, float)
        return value

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """None: connections are plain."""
        return self.tls if isinstance(self.tls, ssl.SSLContext) else None

    @property
    def credentials(self) -> Credentials | None:
        """None: requests are not signed."""
        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(self.access_key, self.secret_key)

    @classmethod
    def from_options(cls, options: Mapping[str, object], base: "ConnectOptions | None" = None) -> "ConnectOptions":
        """`base` (default: all defaults) with `options` laid over it. Raises InvalidOptionError."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else "help(txstore.remoting.ConnectOptions) lists them"
                raise InvalidOptionError(f"there is no option {name}\nhint: {hint}", option=name)
        return dataclasses.replace(base if base is not None else cls(), **options)  # type: ignore[arg-type]


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
        raise _invalid(option, f"{span} is out of range\nhint: 1 ms to 1 day")
    return span.total_seconds()


def _tls(given: object) -> ssl.SSLContext | bool:
    """A context, or False for none."""
    if isinstance(given, ssl.SSLContext) or given is False:
        return given
    if given is True:
        return ssl.create_default_context()
    if not isinstance(given, str | os.PathLike):
        raise _invalid("tls", f"{given!r} is no way to TLS\nhint: True, a PEM file, or an ssl.SSLContext")
    try:
        return ssl.create_default_context(cafile=given)
    except (OSError, ssl.SSLError) as error:
        why = "there is no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise _invalid(
            "tls", f"{os.fspath(given)!r} cannot be used: {why}\nhint: a PEM file with certificates"
        ) from error


def _check_key(option: str, given: object) -> None:
    if given is not None and (not isinstance(given, str) or not given):
        raise _invalid(option, "is no text\nhint: a str, as the broker's operator gave it")


def _check_number(option: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _invalid(option, f"{value!r} is no number in range\nhint: {low} to {high}")


def _invalid(option: str, what: str) -> InvalidOptionError:
    return InvalidOptionError(f"option {option}: {what}", option=option)
