"""httpx over HTTP/2 through the gateway: concurrent calls on one connection, plaintext and TLS."""

import asyncio
import socket
import ssl
import threading
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h2.connection
import httpx
import pytest
from gateways import TEST_TIMEOUT, Certificate, Gateway, settings
from h2 import events

# The number of concurrent calls. The gateway allows a few more per connection.
CONCURRENT = 100


class BarrierHandler(BaseHTTPRequestHandler):
    """/together waits until enough calls are concurrent; other paths return the body length at once."""

    protocol_version = "HTTP/1.1"

    def respond(self):
        length = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self.path.startswith("/together"):
            self.server.barrier.wait(TEST_TIMEOUT)
        body = f"{self.path} {length}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self):
        try:
            super().handle()
        except (ConnectionError, threading.BrokenBarrierError):
            # The client has given up.
            pass

    do_GET = do_POST = respond

    def log_message(self, *_):
        pass


class Backend(ThreadingHTTPServer):
    # All calls arrive at once.
    request_queue_size = 1024
    daemon_threads = True


@pytest.fixture(scope="module")
def backend():
    server = Backend(("127.0.0.1", 0), BarrierHandler)
    server.barrier = threading.Barrier(CONCURRENT)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(params=["plain", "tls"])
def gateway(request, backend, certificate, tmp_path):
    routes = "- {backend: b}\n- {host: ten.test, backend: b, rateLimit: {maxQps: 10}}"
    tls = certificate if request.param == "tls" else None
    text = settings([backend], routes, "rateLimit: {maxConnections: 100}", tls)
    with Gateway(tmp_path, text) as running:
        running.url = f"{'https' if tls else 'http'}://localhost:{running.port}"
        running.context = ssl.create_default_context(cafile=certificate.certificate) if tls else False
        yield running


@asynccontextmanager
async def client(gateway):
    """An HTTP/2 client with one connection."""
    one = httpx.Limits(max_connections=1)
    options = {"http1": False, "http2": True, "limits": one, "timeout": TEST_TIMEOUT, "trust_env": False}
    async with httpx.AsyncClient(verify=gateway.context, base_url=gateway.url, **options) as opened:
        yield opened


def test_concurrent_calls_share_one_connection(gateway):
    async def calls():
        async with client(gateway) as session:
            paths = [f"/together/{number}" for number in range(CONCURRENT)]
            # The calls only complete if all of them are forwarded concurrently.
            responses = await asyncio.gather(*(session.get(path) for path in paths))
            return paths, responses, await asyncio.to_thread(gateway.connections)

    paths, responses, connections = asyncio.run(calls())
    assert {response.http_version for response in responses} == {"HTTP/2"}
    assert [response.text for response in responses] == [f"{path} 0" for path in paths]
    assert connections == (1, 1)


def test_large_bodies_share_a_connection(gateway):
    sizes = [number * 100_000 for number in range(10)]

    async def calls():
        async with client(gateway) as session:
            return await asyncio.gather(*(session.post("/", content=b"x" * size) for size in sizes))

    assert [response.text for response in asyncio.run(calls())] == [f"/ {size}" for size in sizes]
    assert sorted(line["received_bytes"] for line in gateway.wait_for_log_lines(len(sizes))) == sizes


def test_calls_of_one_connection_are_limited_separately(gateway):
    async def calls():
        async with client(gateway) as session:
            host = {"Host": "ten.test"}
            return await asyncio.gather(*(session.get("/", headers=host) for _ in range(CONCURRENT)))

    responses = asyncio.run(calls())
    admitted = sum(response.status_code == 200 for response in responses)
    refused = [response for response in responses if response.status_code == 429]
    # Ten per second; a slow machine may need more than one second.
    assert admitted >= 10 and admitted + len(refused) == CONCURRENT
    assert refused or max(response.elapsed.total_seconds() for response in responses) > 1
    for response in refused:
        assert response.text == "Too Many Requests" and int(response.headers["retry-after"]) >= 1
    lines = [line for line in gateway.wait_for_log_lines(CONCURRENT) if line["status"] == 429]
    assert len(lines) == len(refused)
    for line in lines:
        assert line["refused"] == {"level": "route", "kind": "requests", "limit": 10}


def test_abandoned_call_does_not_affect_others(gateway):
    async def calls():
        async with client(gateway) as session:
            # No other call reaches the barrier.
            with pytest.raises(httpx.ReadTimeout):
                await session.get("/together", timeout=0.2)
            return await session.get("/after")

    assert asyncio.run(calls()).text == "/after 0"


class FrameClient:
    """An HTTP/2 connection that sends each frame on request."""

    def __init__(self, gateway):
        self.socket = socket.create_connection(("127.0.0.1", gateway.port), TEST_TIMEOUT)
        self.state = h2.connection.H2Connection()
        self.state.initiate_connection()
        self.flush()

    def flush(self):
        self.socket.sendall(self.state.data_to_send())

    def post(self, body):
        """Sends a request without END_STREAM."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "localhost")]
        self.state.send_headers(1, [*fields, ("content-length", str(len(body)))])
        self.state.send_data(1, body)
        self.flush()

    def receive(self, *kinds):
        """Returns the stream events up to the first of these kinds."""
        received = []
        while not any(isinstance(event, kinds) for event in received):
            data = self.socket.recv(65536)
            assert data, f"the connection ended: {received}"
            received += self.state.receive_data(data)
            self.flush()
        return [event for event in received if isinstance(event, (events.DataReceived, events.StreamEnded, events.StreamReset))]


@pytest.mark.parametrize("gateway", ["plain"], indirect=True)
@pytest.mark.parametrize("sends_end", [True, False])
def test_request_missing_only_end_stream_is_not_reset(gateway, sends_end):
    client = FrameClient(gateway)
    with client.socket:
        client.post(b"hello")
        received = client.receive(events.DataReceived, events.StreamReset)
        assert [event.data for event in received] == [b"/ 5"], received
        if sends_end:
            client.state.end_stream(1)
            client.flush()
        # A missing END_STREAM is not awaited forever: the stream is reset without an error after the response.
        received = client.receive(events.StreamEnded, events.StreamReset)
        first = next(event for event in received if not isinstance(event, events.DataReceived))
        assert isinstance(first, events.StreamEnded), received
        if sends_end:
            assert not any(isinstance(event, events.StreamReset) for event in received), received
