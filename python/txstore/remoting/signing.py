"""Signs requests with RocketMQ's ACL signature.

In:     a request's fields and body.
Out:    the fields with the access key and the signature.
Always: the secret never appears in a text. The server decides what an account may do.
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
        """Returns the fields with AccessKey and Signature: HmacSHA1 over the values, sorted by name, then the body."""
        said = {**fields, "AccessKey": self.access_key}
        content = "".join(said[name] for name in sorted(said)).encode() + (body or b"")
        signature = hmac.digest(self.secret_key.encode(), content, "sha1")
        return {**said, "Signature": base64.b64encode(signature).decode()}
