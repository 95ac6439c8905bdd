"""Guards the console over HTTPS: it has the server's certificate, also a renewed one, marks its cookie as secure, and
demands a certificate of the browser if the server does.
"""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.certificates import Authority
from txstore import EmbeddedBroker, Server, ServerConfig, errors


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def load(url: str | None, context: ssl.SSLContext) -> tuple[http.client.HTTPResponse, bytes]:
    """Loads the overview; returns the answer, and the server's certificate."""
    assert url is not None
    assert url.startswith("https://")
    line = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=60, context=context)
    line.request("GET", "/")
    answer = line.getresponse()
    certificate = line.sock.getpeercert(binary_form=True) if isinstance(line.sock, ssl.SSLSocket) else None
    answer.read()
    line.close()
    return answer, certificate or b""


def config(**options: object) -> ServerConfig:
    return ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0", **options)  # type: ignore[arg-type]


def test_console_has_the_servers_certificate_and_a_renewed_one(
    broker: EmbeddedBroker, authority: Authority, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("tls_cert", "tls_key")}
    for name, source in authority.pair().options.items():
        files[name].write_bytes(Path(source).read_bytes())
    with Server(broker, config(**files)) as server:
        answer, before = load(server.console, authority.context())
        assert answer.status == 200
        assert "Secure" in str(answer.getheader("Set-Cookie"))
        for name, source in authority.pair().options.items():
            files[name].write_bytes(Path(source).read_bytes())
        server.reload()
        _, after = load(server.console, authority.context())
        assert before != after != b""
        files["tls_cert"].write_text("not a certificate")
        with pytest.raises(errors.InvalidOptionError):
            server.reload()
        assert load(server.console, authority.context())[1] == after
        with pytest.raises(ssl.SSLCertVerificationError):
            load(server.console, ssl.create_default_context())


def test_browser_needs_a_certificate_if_the_server_demands_one(broker: EmbeddedBroker, authority: Authority) -> None:
    with Server(broker, config(**authority.pair().options, tls_ca=authority.file)) as server:
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            load(server.console, authority.context())
        assert load(server.console, authority.context(authority.pair()))[0].status == 200
