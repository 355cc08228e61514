"""WebSockets through the gateway: a client and a server of the usual library, in plain text and over TLS."""

import asyncio
import functools
import ssl
import threading
from contextlib import AsyncExitStack

import pytest
from gateways import FAR_TOO_LONG, Certificate, Gateway, eventually, settings
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.server import serve

ROUTES = """- {backend: b}
- {host: one.test, backend: b, rateLimit: {maxConnections: 1}}
- {host: shut.test, backend: b, rateLimit: {maxQps: 0}}"""


class Echo:
    """A server that repeats what it hears, and does what it is told."""

    def __init__(self):
        self.codes = []
        self.server = serve(self.talk, "127.0.0.1", 0)
        self.port = self.server.socket.getsockname()[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def talk(self, connection):
        if connection.request.path == "/greet":
            # The server speaks first.
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
def talk(gateway):
    """Opens a WebSocket. Not with the threads of the library: they read and write TLS at once, which Python before 3.13 does not bear."""

    def opened(path="/", host="localhost"):
        # The name is what is asked for; the address is where the gateway is.
        more = {"host": "127.0.0.1", "port": gateway.port, "proxy": None, "open_timeout": FAR_TOO_LONG}
        if gateway.context:
            more |= {"ssl": gateway.context, "server_hostname": "localhost"}
        return connect(f"{gateway.scheme}://{host}{path}", **more)

    return opened


def run(test):
    """Makes a test of one that waits, within its time."""

    @functools.wraps(test)
    def running(*fixtures, **named):
        return asyncio.run(asyncio.wait_for(test(*fixtures, **named), FAR_TOO_LONG))

    return running


async def connections(gateway):
    return await asyncio.to_thread(gateway.connections)


@run
async def test_text_passes_both_ways_and_the_end_is_agreed_on(talk, echo, gateway):
    async with talk() as socket:
        for message in ["hello", "ä" * 1000, ""]:
            await socket.send(message)
            assert await socket.recv() == message
        assert await connections(gateway) == (1, 1)
    assert (socket.close_code, socket.close_reason) == (1000, "")
    eventually("the server heard of the end", lambda: (1000, "") in echo.codes)
    gateway.is_empty()


@run
async def test_the_server_may_speak_first(talk):
    async with talk("/greet") as socket:
        assert await socket.recv() == "welcome"


@run
async def test_the_server_may_end_it(talk):
    async with talk() as socket:
        await socket.send("close")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert (socket.close_code, socket.close_reason) == (4001, "as you wish")


@run
async def test_the_client_may_say_why_it_ends_it(talk, echo):
    async with talk() as socket:
        await socket.close(4002, "enough")
    eventually("the server heard why", lambda: (4002, "enough") in echo.codes)


@run
async def test_bytes_pieces_and_pings_pass(talk):
    async with talk() as socket:
        large = bytes(range(256)) * 2048
        await socket.send(large)
        assert await socket.recv() == large
        await socket.send(["in ", "three ", "pieces"])
        assert await socket.recv() == "in three pieces"
        await (await socket.ping())


@run
async def test_many_talk_at_once(talk, gateway):
    async with AsyncExitStack() as all_of_them:
        sockets = [await all_of_them.enter_async_context(talk()) for _ in range(30)]
        assert await connections(gateway) == (30, 30)
        for number, socket in enumerate(sockets):
            await socket.send(str(number))
        assert [await socket.recv() for socket in sockets] == [str(number) for number in range(30)]
    gateway.is_empty()


@run
async def test_a_limit_refuses_before_anything_is_upgraded(talk, gateway):
    with pytest.raises(InvalidStatus) as shut:
        await talk(host="shut.test")
    assert shut.value.response.status_code == 429
    async with talk(host="one.test") as first:
        with pytest.raises(InvalidStatus) as second:
            await talk(host="one.test")
        assert second.value.response.status_code == 429
        assert second.value.response.body == b"Too Many Connections"
        await first.send("still here")
        assert await first.recv() == "still here"
    await asyncio.to_thread(gateway.is_empty)
    async with talk(host="one.test") as third:
        await third.send("room again")
        assert await third.recv() == "room again"
