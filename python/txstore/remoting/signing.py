"""Signing: RocketMQ's ACL signature of what a client asks for.

In: a request's fields and body. Out: the fields that say who asks, and prove it. Always: the secret is no part of any
text. Not here: who may do what, which the server decides.
"""

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Credentials"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account's name and its secret."""

    access_key: str
    secret_key: str = field(repr=False)

    def signed(self, fields: Mapping[str, str], body: bytes | None) -> dict[str, str]:
        """HmacSHA1 over the values in the order of their names, then the body."""
        said = {**fields, "AccessKey": self.access_key}
        content = "".join(said[name] for name in sorted(said)).encode() + (body or b"")
        signature = hmac.digest(self.secret_key.encode(), content, "sha1")
        return {**said, "Signature": base64.b64encode(signature).decode()}
