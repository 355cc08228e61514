"""WebSockets through the gateway: a client and a server of the usual library, in plain text and over TLS."""

import ssl
import threading
from contextlib import ExitStack

import pytest
from gateways import FAR_TOO_LONG, Certificate, Gateway, eventually, settings
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
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
    """Opens a WebSocket."""

    def opened(path="/", host="localhost", **more):
        # The name is what is asked for; the address is where the gateway is.
        more |= {"address": ("127.0.0.1", gateway.port), "proxy": None, "open_timeout": FAR_TOO_LONG}
        if gateway.context:
            more |= {"ssl": gateway.context, "server_hostname": "localhost"}
        return connect(f"{gateway.scheme}://{host}{path}", **more)

    return opened


def test_text_passes_both_ways_and_the_end_is_agreed_on(talk, echo, gateway):
    with talk() as socket:
        for message in ["hello", "ä" * 1000, ""]:
            socket.send(message)
            assert socket.recv(FAR_TOO_LONG) == message
        assert gateway.connections() == (1, 1)
    assert (socket.close_code, socket.close_reason) == (1000, "")
    eventually("the server heard of the end", lambda: (1000, "") in echo.codes)
    gateway.is_empty()


def test_the_server_may_speak_first(talk):
    with talk("/greet") as socket:
        assert socket.recv(FAR_TOO_LONG) == "welcome"


def test_the_server_may_end_it(talk):
    with talk() as socket:
        socket.send("close")
        with pytest.raises(ConnectionClosed):
            socket.recv(FAR_TOO_LONG)
        assert (socket.close_code, socket.close_reason) == (4001, "as you wish")


def test_the_client_may_say_why_it_ends_it(talk, echo):
    with talk() as socket:
        socket.close(4002, "enough")
    eventually("the server heard why", lambda: (4002, "enough") in echo.codes)


def test_bytes_pieces_and_pings_pass(talk):
    with talk() as socket:
        large = bytes(range(256)) * 2048
        socket.send(large)
        assert socket.recv(FAR_TOO_LONG) == large
        socket.send(["in ", "three ", "pieces"])
        assert socket.recv(FAR_TOO_LONG) == "in three pieces"
        assert socket.ping().wait(FAR_TOO_LONG), "nobody answered the ping"


def test_many_talk_at_once(talk, gateway):
    with ExitStack() as all_of_them:
        sockets = [all_of_them.enter_context(talk()) for _ in range(30)]
        assert gateway.connections() == (30, 30)
        for number, socket in enumerate(sockets):
            socket.send(str(number))
        assert [socket.recv(FAR_TOO_LONG) for socket in sockets] == [str(number) for number in range(30)]
    gateway.is_empty()


def test_a_limit_refuses_before_anything_is_upgraded(talk, gateway):
    with pytest.raises(InvalidStatus) as shut:
        talk(host="shut.test").__enter__()
    assert shut.value.response.status_code == 429
    with talk(host="one.test") as first:
        with pytest.raises(InvalidStatus) as second:
            talk(host="one.test").__enter__()
        assert second.value.response.status_code == 429
        assert second.value.response.body == b"Too Many Connections"
        first.send("still here")
        assert first.recv(FAR_TOO_LONG) == "still here"
    gateway.is_empty()
    with talk(host="one.test") as third:
        third.send("room again")
        assert third.recv(FAR_TOO_LONG) == "room again"
