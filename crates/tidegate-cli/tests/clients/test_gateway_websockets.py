"""WebSockets through the gateway: the websockets client and server, plaintext and TLS."""

import asyncio
import functools
import ssl
import threading
from contextlib import AsyncExitStack

import pytest
from gateways import TEST_TIMEOUT, Certificate, Gateway, wait_until, settings
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.server import serve

ROUTES = """- {backend: b}
- {host: one.test, backend: b, rateLimit: {maxConnections: 1}}
- {host: shut.test, backend: b, rateLimit: {maxQps: 0}}"""


class Echo:
    """An echo server that also greets and closes on request."""

    def __init__(self):
        self.codes = []
        self.server = serve(self.handle, "127.0.0.1", 0)
        self.port = self.server.socket.getsockname()[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def handle(self, connection):
        if connection.request.path == "/greet":
            # The server sends the first message.
            connection.send("welcome")
        try:
            for message in connection:
                if message == "close":
                    connection.close(4001, "as you wish")
                connection.send(message)
        except ConnectionClosed:
            pass
        self.codes.append((connection.close_code, connection.close_reason))


@pytest.fixture(scope="module")
def echo():
    started = Echo()
    yield started
    started.server.shutdown()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module", params=["plain", "tls"])
def gateway(request, echo, certificate, tmp_path_factory):
    tls = certificate if request.param == "tls" else None
    text = settings([echo.port], ROUTES, "rateLimit: {maxConnections: 100}", tls)
    with Gateway(tmp_path_factory.mktemp("gateway"), text) as running:
        running.context = ssl.create_default_context(cafile=certificate.certificate) if tls else None
        running.scheme = "wss" if tls else "ws"
        yield running


@pytest.fixture
def open_socket(gateway):
    """Opens a WebSocket with asyncio: the threaded client uses one TLS socket from two threads, which fails before Python 3.13."""

    def opened(path="/", host="localhost"):
        # `host` is the Host field; the address is the gateway.
        more = {"host": "127.0.0.1", "port": gateway.port, "proxy": None, "open_timeout": TEST_TIMEOUT}
        if gateway.context:
            more |= {"ssl": gateway.context, "server_hostname": "localhost"}
        return connect(f"{gateway.scheme}://{host}{path}", **more)

    return opened


def run(test):
    """Runs an async test with a timeout."""

    @functools.wraps(test)
    def running(*fixtures, **named):
        return asyncio.run(asyncio.wait_for(test(*fixtures, **named), TEST_TIMEOUT))

    return running


async def connections(gateway):
    return await asyncio.to_thread(gateway.connections)


@run
async def test_text_passes_and_the_close_is_acknowledged(open_socket, echo, gateway):
    async with open_socket() as socket:
        for message in ["hello", "ä" * 1000, ""]:
            await socket.send(message)
            assert await socket.recv() == message
        assert await connections(gateway) == (1, 1)
    assert (socket.close_code, socket.close_reason) == (1000, "")
    wait_until("the server received the close", lambda: (1000, "") in echo.codes)
    gateway.wait_until_empty()


@run
async def test_server_can_send_first(open_socket):
    async with open_socket("/greet") as socket:
        assert await socket.recv() == "welcome"


@run
async def test_server_can_close(open_socket):
    async with open_socket() as socket:
        await socket.send("close")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert (socket.close_code, socket.close_reason) == (4001, "as you wish")


@run
async def test_client_close_reason_is_forwarded(open_socket, echo):
    async with open_socket() as socket:
        await socket.close(4002, "enough")
    wait_until("the server received the reason", lambda: (4002, "enough") in echo.codes)


@run
async def test_binary_fragments_and_pings_pass(open_socket):
    async with open_socket() as socket:
        large = bytes(range(256)) * 2048
        await socket.send(large)
        assert await socket.recv() == large
        await socket.send(["in ", "three ", "pieces"])
        assert await socket.recv() == "in three pieces"
        await (await socket.ping())


@run
async def test_concurrent_sockets_are_counted(open_socket, gateway):
    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(open_socket()) for _ in range(30)]
        assert await connections(gateway) == (30, 30)
        for number, socket in enumerate(sockets):
            await socket.send(str(number))
        assert [await socket.recv() for socket in sockets] == [str(number) for number in range(30)]
    gateway.wait_until_empty()


@run
async def test_limit_refuses_before_the_upgrade(open_socket, gateway):
    with pytest.raises(InvalidStatus) as shut:
        await open_socket(host="shut.test")
    assert shut.value.response.status_code == 429
    async with open_socket(host="one.test") as first:
        with pytest.raises(InvalidStatus) as second:
            await open_socket(host="one.test")
        assert second.value.response.status_code == 429
        assert second.value.response.body == b"Too Many Connections"
        await first.send("still here")
        assert await first.recv() == "still here"
    await asyncio.to_thread(gateway.wait_until_empty)
    async with open_socket(host="one.test") as third:
        await third.send("room again")
        assert await third.recv() == "room again"
