"""Serialization: values of Python as the bodies of messages, and bodies as values.

`serializer` is the Protocol that users may implement, and the two calls that messages make; `json` is the default
serializer; `json_types` converts parsed JSON to annotated types without other packages; `pydantic` passes types of
Pydantic to it, where it is installed.
"""

from txstore.serialization.json import JsonSerializer
from txstore.serialization.serializer import Serializer, decode, encode

__all__ = ["JsonSerializer", "Serializer", "decode", "encode"]
