"""curl through the gateway: every HTTP version, plaintext and TLS, to an echo server."""

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gateways import Certificate, Gateway, settings

MEBIBYTE = 1024 * 1024

# The curl option, the value of `%{http_version}`, and whether TLS is used.
VERSIONS = {
    "plain-1.0": ("--http1.0", "1.0", False),
    "plain-1.1": ("--http1.1", "1.1", False),
    "plain-2": ("--http2-prior-knowledge", "2", False),
    "tls-1.1": ("--http1.1", "1.1", True),
    "tls-2": ("--http2", "2", True),
}

ROUTES = """- {backend: b}
- {host: shut.test, backend: b, rateLimit: {maxQps: 0}}
- {host: full.test, backend: b, rateLimit: {maxConnections: 0}}
- {host: away.test, backend: away}"""


class Echo(BaseHTTPRequestHandler):
    """Responds with the request as JSON; /large returns a large chunked body."""

    protocol_version = "HTTP/1.1"

    def respond(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self.chunks())
        request = {"method": self.command, "path": self.path, "length": len(body), "sum": sum(body)}
        response = json.dumps({**request, "fields": {name.lower(): value for name, value in self.headers.items()}}).encode()
        self.send_response(200)
        if self.path == "/large":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(64):
                self.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response)

    def chunks(self):
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = respond

    def log_message(self, *_):
        pass


class Curl:
    """Calls a gateway with one HTTP version."""

    def __init__(self, gateway, certificate, place, version):
        self.gateway, self.certificate, self.place = gateway, certificate, place
        self.option, self.version, self.is_tls = VERSIONS[version]

    def __call__(self, path, *options, host="localhost"):
        """Returns the status, the fields and the body of the response."""
        scheme = "https" if self.is_tls else "http"
        command = ["curl", "--silent", "--show-error", "--max-time", "120", self.option]
        command += ["--cacert", str(self.certificate.certificate)] if self.is_tls else []
        command += ["--header", f"Host: {host}", "--dump-header", self.place / "head", "--output", self.place / "body"]
        command += ["--write-out", "%{http_version}", *options, f"{scheme}://localhost:{self.gateway.port}{path}"]
        (self.place / "body").write_bytes(b"")
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, f"{path}: {ran.stderr}"
        # A server may respond to an HTTP/1.0 client with version HTTP/1.1.
        expected = {"1.0": ["1.0", "1.1"]}.get(self.version, [self.version])
        assert ran.stdout in expected, f"{ran.stdout} is not {self.version}"
        head = (self.place / "head").read_text().replace("\r\n", "\n").strip("\n").split("\n\n")[-1].split("\n")
        fields = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in head[1:])}
        return int(head[0].split()[1]), fields, (self.place / "body").read_bytes()

    def received(self, path, *options, **more):
        """Returns the request as the backend received it."""
        status, fields, body = self(path, *options, **more)
        assert status == 200, (status, fields, body)
        return json.loads(body)


@pytest.fixture(scope="session")
def backend():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session")
def gateways(tmp_path_factory, backend, certificate):
    """A plaintext and a TLS gateway."""
    # Nothing listens on the discard port.
    away = "\n  - {name: away, endpoints: [{host: 127.0.0.1, port: 9}]}\nroutes:"
    texts = [
        settings([backend], ROUTES, "rateLimit: {maxConnections: 1000}", tls).replace("\nroutes:", away)
        for tls in (None, certificate)
    ]
    with Gateway(tmp_path_factory.mktemp("plain"), texts[0]) as plain:
        with Gateway(tmp_path_factory.mktemp("tls"), texts[1]) as tls:
            yield {False: plain, True: tls}


@pytest.fixture(params=VERSIONS)
def curl(request, gateways, certificate, tmp_path):
    return Curl(gateways[VERSIONS[request.param][2]], certificate, tmp_path, request.param)


def test_request_arrives_unchanged(curl):
    received = curl.received("/a/b?c=%20d", "--header", "X-Own: yes", host="api.test")
    assert (received["method"], received["path"], received["fields"]["x-own"]) == ("GET", "/a/b?c=%20d", "yes")
    assert received["fields"]["host"] == "api.test"
    assert received["fields"]["x-forwarded-for"] == "127.0.0.1"
    assert received["fields"]["x-forwarded-proto"] == ("https" if curl.is_tls else "http")
    assert received["fields"]["x-forwarded-host"] == "api.test"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_can_have_a_body(curl, method):
    received = curl.received("/", "--request", method, "--data", "a body")
    assert (received["method"], received["length"]) == (method, 6)


def test_head_response_has_no_body(curl):
    status, fields, _ = curl("/", "--head")
    assert status == 200 and int(fields["content-length"]) > 0


def test_large_bodies_pass_in_both_directions(curl):
    data = bytes(range(256)) * (5 * MEBIBYTE // 256)
    (curl.place / "send").write_bytes(data)
    received = curl.received("/", "--data-binary", f"@{curl.place / 'send'}")
    assert (received["length"], received["sum"]) == (len(data), sum(data))
    status, _, body = curl("/large")
    assert (status, body == b"x" * 64 * 0x10000) == (200, True)


def test_chunked_bodies_pass(curl):
    if curl.version != "1.1":
        pytest.skip("only HTTP/1.1 has the chunked coding")
    received = curl.received("/", "--header", "Transfer-Encoding: chunked", "--data-binary", "@" + __file__)
    with open(__file__, "rb") as file:
        assert received["length"] == len(file.read())


def test_refusals_describe_limit_and_retry_time(curl):
    status, fields, body = curl("/", host="shut.test")
    assert (status, body) == (429, b"Too Many Requests")
    assert int(fields["retry-after"]) >= 1 and "ratelimit" in fields and "ratelimit-policy" in fields
    status, fields, body = curl("/", host="full.test")
    assert (status, body) == (429, b"Too Many Connections")
    assert "retry-after" in fields


def test_unreachable_backend_returns_502(curl):
    assert curl("/", host="away.test")[0] == 502


def test_request_without_route_returns_404(backend, tmp_path):
    """Also for an absolute target elsewhere: the gateway is not an open proxy."""
    with Gateway(tmp_path, settings([backend], "- {host: known.test, backend: b}")) as gateway:
        curl = Curl(gateway, None, tmp_path, "plain-1.1")
        assert curl("/", host="unknown.test")[0] == 404
        assert curl("/", "--request-target", "http://unknown.test/", host="known.test")[0] in (400, 404)
        assert curl("/", host="known.test")[0] == 200


def test_connection_is_reused(curl):
    if curl.version == "1.0":
        pytest.skip("HTTP/1.0 closes the connection after the response")
    if curl.option == "--http2-prior-knowledge" and CURL < 8:
        pytest.skip("curl before 8.0 cannot reuse such a connection (curl issue 10634)")
    scheme = "https" if curl.is_tls else "http"
    url = f"{scheme}://localhost:{curl.gateway.port}/"
    each = ["--output", "/dev/null", url] * 5
    command = ["curl", "--silent", "--show-error", curl.option, "--write-out", "%{http_code} %{num_connects}\\n"]
    command += ["--cacert", str(curl.certificate.certificate)] if curl.is_tls else []
    ran = subprocess.run([*command, *each], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[:-1] == ["200 1"] + ["200 0"] * 4


CURL = int(subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout.split()[1].split(".")[0])


def test_alpn_selects_the_best_common_protocol(gateways, certificate):
    """HTTP/2 by default; HTTP/1.1 for a client that supports nothing else."""
    url = f"https://localhost:{gateways[True].port}/"
    for options, version in [([], "2"), (["--http1.1"], "1.1"), (["--no-alpn"], "1.1")]:
        command = ["curl", "--silent", "--show-error", "--cacert", str(certificate.certificate), *options]
        command += ["--output", "/dev/null", "--write-out", "%{http_version}", url]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == version, options


def test_plaintext_on_a_tls_port_is_refused(gateways, certificate, tmp_path):
    url = f"http://localhost:{gateways[True].port}/"
    assert subprocess.run(["curl", "--silent", "--max-time", "120", url], capture_output=True).returncode != 0
    # The next client is served.
    assert Curl(gateways[True], certificate, tmp_path, "tls-2")("/")[0] == 200
