"""gRPC through the gateway: the grpcio client and server with raw byte messages."""

import threading
from concurrent import futures

import grpc
import pytest
from gateways import TEST_TIMEOUT, Certificate, Gateway, settings

ROUTES = """- {backend: b}
- {path: /test.Shut/**, backend: b, rateLimit: {maxQps: 0}}
- {path: /test.Few/**, backend: b, rateLimit: {maxQpsPerClient: 3}}
- {path: /test.Away/**, backend: away}"""


def repeat(request, context):
    """Echoes the request and returns a metadata field in the initial metadata."""
    fields = dict(context.invocation_metadata())
    context.send_initial_metadata([("x-first", fields.get("x-own", ""))])
    context.set_trailing_metadata([("x-last", "done")])
    return request


def fail(request, context):
    context.set_trailing_metadata([("x-why", "because")])
    context.abort(grpc.StatusCode.NOT_FOUND, "there is no such thing: ä")


def count(request, _context):
    for number in range(int(request)):
        yield str(number).encode()


def add(requests, _context):
    return str(sum(int(each) for each in requests)).encode()


def talk(requests, _context):
    """Responds to each message before reading the next."""
    for each in requests:
        yield each.upper()


def wait(_request, context):
    ended = threading.Event()
    # A call that is already cancelled invokes no callback.
    if context.add_callback(ended.set):
        ended.wait(TEST_TIMEOUT)
    return b""


METHODS = {
    "Repeat": grpc.unary_unary_rpc_method_handler(repeat),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Wait": grpc.unary_unary_rpc_method_handler(wait),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Add": grpc.stream_unary_rpc_method_handler(add),
    "Talk": grpc.stream_stream_rpc_method_handler(talk),
}


@pytest.fixture(scope="module")
def backend():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
    for service in ("test.Service", "test.Shut", "test.Few"):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, METHODS),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module", params=["plain", "tls"])
def gateway(request, backend, certificate, tmp_path_factory):
    tls = certificate if request.param == "tls" else None
    away = "\n  - {name: away, endpoints: [{host: 127.0.0.1, port: 9}]}\nroutes:"
    text = settings([backend], ROUTES, "rateLimit: {maxConnections: 100}", tls).replace("\nroutes:", away)
    with Gateway(tmp_path_factory.mktemp("gateway"), text) as running:
        running.credentials = grpc.ssl_channel_credentials(certificate.certificate.read_bytes()) if tls else None
        yield running


@pytest.fixture
def channel(gateway):
    address = f"localhost:{gateway.port}"
    # Ignore proxy settings of the environment.
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    if gateway.credentials:
        opened = grpc.secure_channel(address, gateway.credentials, options)
    else:
        opened = grpc.insecure_channel(address, options)
    with opened:
        yield opened


def test_unary_call_passes_metadata_and_trailers(channel):
    call = channel.unary_unary("/test.Service/Repeat")
    response, info = call.with_call(b"\x00\xff hello", metadata=[("x-own", "yes")], timeout=TEST_TIMEOUT)
    assert response == b"\x00\xff hello"
    assert dict(info.initial_metadata())["x-first"] == "yes"
    assert dict(info.trailing_metadata())["x-last"] == "done"
    assert info.code() == grpc.StatusCode.OK


def test_large_messages_pass(channel):
    message = bytes(range(256)) * 8192
    assert channel.unary_unary("/test.Service/Repeat")(message, timeout=TEST_TIMEOUT) == message


def test_streams_pass_in_every_direction(channel):
    counted = channel.unary_stream("/test.Service/Count")(b"1000", timeout=TEST_TIMEOUT)
    assert [int(each) for each in counted] == [*range(1000)]
    numbers = (str(number).encode() for number in range(1000))
    assert channel.stream_unary("/test.Service/Add")(numbers, timeout=TEST_TIMEOUT) == b"499500"


def test_bidirectional_stream_alternates(channel):
    """Each message is sent after the previous response, so nothing may wait for the end of a stream."""
    messages_to_send, may_send = [b"one", b"two", b"three"], threading.Semaphore(1)

    def messages():
        for each in messages_to_send:
            may_send.acquire()
            yield each

    responses = channel.stream_stream("/test.Service/Talk")(messages(), timeout=TEST_TIMEOUT)
    received = []
    for response in responses:
        received.append(response)
        may_send.release()
    assert received == [b"ONE", b"TWO", b"THREE"]


def test_concurrent_calls_complete(channel):
    calls = [channel.unary_unary("/test.Service/Repeat").future(str(n).encode(), timeout=TEST_TIMEOUT) for n in range(100)]
    assert [call.result() for call in calls] == [str(number).encode() for number in range(100)]


@pytest.mark.parametrize("method,code", [("Fail", grpc.StatusCode.NOT_FOUND), ("None", grpc.StatusCode.UNIMPLEMENTED)])
def test_server_errors_are_forwarded(channel, method, code):
    with pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(f"/test.Service/{method}")(b"", timeout=TEST_TIMEOUT)
    assert error.value.code() == code
    if method == "Fail":
        assert error.value.details() == "there is no such thing: ä"
        assert dict(error.value.trailing_metadata())["x-why"] == "because"


def test_calls_time_out_and_can_be_cancelled(channel):
    with pytest.raises(grpc.RpcError) as late:
        channel.unary_unary("/test.Service/Wait")(b"", timeout=0.3)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    call = channel.unary_unary("/test.Service/Wait").future(b"", timeout=TEST_TIMEOUT)
    assert call.cancel()
    assert channel.unary_unary("/test.Service/Repeat")(b"after", timeout=TEST_TIMEOUT) == b"after"


def refused(call, *arguments):
    with pytest.raises(grpc.RpcError) as error:
        response = call(*arguments, timeout=TEST_TIMEOUT)
        # A stream raises the error when it is read.
        [*response]
    return error.value


def test_refused_call_is_resource_exhausted(channel, gateway):
    shut = refused(channel.unary_unary("/test.Shut/Repeat"), b"")
    assert shut.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert shut.details() == "Too Many Requests"
    talk = refused(channel.stream_stream("/test.Shut/Talk"), iter([b"one"]))
    assert talk.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for line in gateway.wait_for_log_lines(2, "/test.Shut"):
        assert line["refused"] == {"level": "route", "kind": "requests", "limit": 0}


def test_client_limit_refuses_further_calls(channel):
    call, ends = channel.unary_unary("/test.Few/Repeat"), []
    # Three per second: only a machine that needs more than 100 s for 400 calls would serve them all.
    for number in range(400):
        try:
            assert call(str(number).encode(), timeout=TEST_TIMEOUT) == str(number).encode()
            ends.append(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            ends.append(error.code())
            break
    assert ends[:3] == [grpc.StatusCode.OK] * 3
    assert ends[-1] == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_unreachable_server_is_unavailable(channel):
    assert refused(channel.unary_unary("/test.Away/Repeat"), b"").code() == grpc.StatusCode.UNAVAILABLE
