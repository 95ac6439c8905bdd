"""Connection: the options of a read or a write that say how brokers are reached.

In:     texts.
Out:    an address and the options of a connection.
Always: what is not given is taken from the environment, as the command line does it.
"""

from __future__ import annotations

import re

from txstore.client.dial import name_servers
from txstore.client.options import ConnectConfig
from txstore.errors import InvalidOptionError
from txstore.spark.option_names import invalid

__all__ = ["broker_address", "connect_config"]


def broker_address(text: str) -> str:
    """Returns the option brokers in the form of `txstore.connect`: addresses separated by semicolons.

    Raises InvalidOptionError.
    """
    address = ";".join(part.strip() for part in re.split("[;,]", text) if part.strip())
    try:
        name_servers(address)
    except InvalidOptionError as error:
        raise invalid("brokers", str(error)) from None
    return address


def connect_config(tls: str | None, access_key: str | None, secret_key: str | None) -> ConnectConfig:
    """Returns the options of a connection: the environment's, replaced by those that are given.

    Raises InvalidOptionError.
    """
    given: dict[str, object] = {}
    if tls is not None and tls.lower() != "false":
        given["tls"] = True if tls.lower() == "true" else tls
    if access_key is not None:
        given |= {"access_key": access_key, "secret_key": secret_key}
    return ConnectConfig.from_options(given, ConnectConfig.from_environment())
