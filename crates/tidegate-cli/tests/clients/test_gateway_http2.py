"""httpx, a client of HTTP/2, through the gateway: many calls at once on one connection, in plain text and over TLS."""

import asyncio
import socket
import ssl
import threading
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h2.connection
import httpx
import pytest
from gateways import FAR_TOO_LONG, Certificate, Gateway, settings
from h2 import events

# As many calls as are open at once; the gateway lets a connection have a few more.
TOGETHER = 100


class Together(BaseHTTPRequestHandler):
    """To /together it answers when so many others wait too, and to anything else at once with the length of what it heard."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        length = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self.path.startswith("/together"):
            self.server.barrier.wait(FAR_TOO_LONG)
        body = f"{self.path} {length}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self):
        try:
            super().handle()
        except (ConnectionError, threading.BrokenBarrierError):
            # Whoever asked has given up.
            pass

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


class Backend(ThreadingHTTPServer):
    # All of them come at once.
    request_queue_size = 1024
    daemon_threads = True


@pytest.fixture(scope="module")
def backend():
    server = Backend(("127.0.0.1", 0), Together)
    server.barrier = threading.Barrier(TOGETHER)
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
    """A client with one connection that speaks nothing but HTTP/2."""
    one = httpx.Limits(max_connections=1)
    options = {"http1": False, "http2": True, "limits": one, "timeout": FAR_TOO_LONG, "trust_env": False}
    async with httpx.AsyncClient(verify=gateway.context, base_url=gateway.url, **options) as opened:
        yield opened


def test_many_calls_are_under_way_at_once_on_one_connection(gateway):
    async def calls():
        async with client(gateway) as asking:
            paths = [f"/together/{number}" for number in range(TOGETHER)]
            # None of them would be answered if one waited for another.
            answers = await asyncio.gather(*(asking.get(path) for path in paths))
            return paths, answers, await asyncio.to_thread(gateway.connections)

    paths, answers, connections = asyncio.run(calls())
    assert {answer.http_version for answer in answers} == {"HTTP/2"}
    assert [answer.text for answer in answers] == [f"{path} 0" for path in paths]
    assert connections == (1, 1)


def test_large_bodies_share_a_connection(gateway):
    sizes = [number * 100_000 for number in range(10)]

    async def calls():
        async with client(gateway) as asking:
            return await asyncio.gather(*(asking.post("/", content=b"x" * size) for size in sizes))

    assert [answer.text for answer in asyncio.run(calls())] == [f"/ {size}" for size in sizes]
    assert sorted(line["received_bytes"] for line in gateway.logged(len(sizes))) == sizes


def test_calls_of_one_connection_are_limited_one_by_one(gateway):
    async def calls():
        async with client(gateway) as asking:
            host = {"Host": "ten.test"}
            return await asyncio.gather(*(asking.get("/", headers=host) for _ in range(TOGETHER)))

    answers = asyncio.run(calls())
    admitted = sum(answer.status_code == 200 for answer in answers)
    refused = [answer for answer in answers if answer.status_code == 429]
    # Ten in a second; a slow machine may take more than one.
    assert admitted >= 10 and admitted + len(refused) == TOGETHER
    assert refused or max(answer.elapsed.total_seconds() for answer in answers) > 1
    for answer in refused:
        assert answer.text == "Too Many Requests" and int(answer.headers["retry-after"]) >= 1
    lines = [line for line in gateway.logged(TOGETHER) if line["status"] == 429]
    assert len(lines) == len(refused)
    for line in lines:
        assert line["refused"] == {"level": "route", "kind": "requests", "limit": 10}


def test_a_call_that_is_given_up_leaves_the_others_alone(gateway):
    async def calls():
        async with client(gateway) as asking:
            # Nobody will be there to wait with.
            with pytest.raises(httpx.ReadTimeout):
                await asking.get("/together", timeout=0.2)
            return await asking.get("/after")

    assert asyncio.run(calls()).text == "/after 0"


class Slowly:
    """A connection of HTTP/2 on which every frame is sent when a test says so."""

    def __init__(self, gateway):
        self.socket = socket.create_connection(("127.0.0.1", gateway.port), FAR_TOO_LONG)
        self.state = h2.connection.H2Connection()
        self.state.initiate_connection()
        self.flush()

    def flush(self):
        self.socket.sendall(self.state.data_to_send())

    def post(self, body):
        """Sends all of a request but the word that it is over."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "localhost")]
        self.state.send_headers(1, [*fields, ("content-length", str(len(body)))])
        self.state.send_data(1, body)
        self.flush()

    def hear(self, *kinds):
        """What comes up to the first event of these kinds."""
        heard = []
        while not any(isinstance(event, kinds) for event in heard):
            data = self.socket.recv(65536)
            assert data, f"the connection ended: {heard}"
            heard += self.state.receive_data(data)
            self.flush()
        return [event for event in heard if isinstance(event, (events.DataReceived, events.StreamEnded, events.StreamReset))]


@pytest.mark.parametrize("gateway", ["plain"], indirect=True)
@pytest.mark.parametrize("says_so", [True, False])
def test_nobody_is_reset_who_has_only_to_say_that_it_is_over(gateway, says_so):
    slowly = Slowly(gateway)
    with slowly.socket:
        slowly.post(b"hello")
        heard = slowly.hear(events.DataReceived, events.StreamReset)
        assert [event.data for event in heard] == [b"/ 5"], heard
        if says_so:
            slowly.state.end_stream(1)
            slowly.flush()
        # Who never says it is not waited for: it is reset without an error, behind the end of the response.
        heard = slowly.hear(events.StreamEnded, events.StreamReset)
        first = next(event for event in heard if not isinstance(event, events.DataReceived))
        assert isinstance(first, events.StreamEnded), heard
        if says_so:
            assert not any(isinstance(event, events.StreamReset) for event in heard), heard
