"""gRPC through the gateway: a client and a server of the usual library, with messages that are plain bytes."""

import threading
from concurrent import futures

import grpc
import pytest
from gateways import FAR_TOO_LONG, Certificate, Gateway, settings

ROUTES = """- {backend: b}
- {path: /test.Shut/**, backend: b, rateLimit: {maxQps: 0}}
- {path: /test.Few/**, backend: b, rateLimit: {maxQpsPerClient: 3}}
- {path: /test.Away/**, backend: away}"""


def repeat(request, context):
    """Says what it heard, and where the call came from."""
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
    """Answers each message before it waits for the next."""
    for each in requests:
        yield each.upper()


def wait(_request, context):
    ended = threading.Event()
    # Who has given up before anybody listens calls nobody back.
    if context.add_callback(ended.set):
        ended.wait(FAR_TOO_LONG)
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
    # Not through a proxy that the environment may name.
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    if gateway.credentials:
        opened = grpc.secure_channel(address, gateway.credentials, options)
    else:
        opened = grpc.insecure_channel(address, options)
    with opened:
        yield opened


def test_one_message_each_way_with_fields_before_and_behind(channel):
    call = channel.unary_unary("/test.Service/Repeat")
    answer, told = call.with_call(b"\x00\xff hello", metadata=[("x-own", "yes")], timeout=FAR_TOO_LONG)
    assert answer == b"\x00\xff hello"
    assert dict(told.initial_metadata())["x-first"] == "yes"
    assert dict(told.trailing_metadata())["x-last"] == "done"
    assert told.code() == grpc.StatusCode.OK


def test_large_messages_pass(channel):
    message = bytes(range(256)) * 8192
    assert channel.unary_unary("/test.Service/Repeat")(message, timeout=FAR_TOO_LONG) == message


def test_streams_pass_in_every_direction(channel):
    counted = channel.unary_stream("/test.Service/Count")(b"1000", timeout=FAR_TOO_LONG)
    assert [int(each) for each in counted] == [*range(1000)]
    numbers = (str(number).encode() for number in range(1000))
    assert channel.stream_unary("/test.Service/Add")(numbers, timeout=FAR_TOO_LONG) == b"499500"


def test_both_talk_in_turns(channel):
    """Each message is sent when the one before was answered: nothing waits for the end of a stream."""
    said, may_go = [b"one", b"two", b"three"], threading.Semaphore(1)

    def messages():
        for each in said:
            may_go.acquire()
            yield each

    answers = channel.stream_stream("/test.Service/Talk")(messages(), timeout=FAR_TOO_LONG)
    heard = []
    for answer in answers:
        heard.append(answer)
        may_go.release()
    assert heard == [b"ONE", b"TWO", b"THREE"]


def test_calls_are_under_way_at_once(channel):
    calls = [channel.unary_unary("/test.Service/Repeat").future(str(n).encode(), timeout=FAR_TOO_LONG) for n in range(100)]
    assert [call.result() for call in calls] == [str(number).encode() for number in range(100)]


@pytest.mark.parametrize("method,code", [("Fail", grpc.StatusCode.NOT_FOUND), ("None", grpc.StatusCode.UNIMPLEMENTED)])
def test_what_the_server_says_went_wrong_arrives(channel, method, code):
    with pytest.raises(grpc.RpcError) as wrong:
        channel.unary_unary(f"/test.Service/{method}")(b"", timeout=FAR_TOO_LONG)
    assert wrong.value.code() == code
    if method == "Fail":
        assert wrong.value.details() == "there is no such thing: ä"
        assert dict(wrong.value.trailing_metadata())["x-why"] == "because"


def test_a_call_has_a_deadline_and_may_be_given_up(channel):
    with pytest.raises(grpc.RpcError) as late:
        channel.unary_unary("/test.Service/Wait")(b"", timeout=0.3)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    call = channel.unary_unary("/test.Service/Wait").future(b"", timeout=FAR_TOO_LONG)
    assert call.cancel()
    assert channel.unary_unary("/test.Service/Repeat")(b"after", timeout=FAR_TOO_LONG) == b"after"


def refused(call, *arguments):
    with pytest.raises(grpc.RpcError) as wrong:
        answer = call(*arguments, timeout=FAR_TOO_LONG)
        # A stream says it when it is read.
        [*answer]
    return wrong.value


def test_a_limit_that_is_reached_is_a_resource_that_is_exhausted(channel, gateway):
    shut = refused(channel.unary_unary("/test.Shut/Repeat"), b"")
    assert shut.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert shut.details() == "Too Many Requests"
    talk = refused(channel.stream_stream("/test.Shut/Talk"), iter([b"one"]))
    assert talk.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for line in gateway.logged(2, "/test.Shut"):
        assert line["refused"] == {"level": "route", "kind": "requests", "limit": 0}


def test_a_client_is_served_until_it_has_had_enough(channel):
    call, ends = channel.unary_unary("/test.Few/Repeat"), []
    # Three in a second: a machine on which four hundred calls take more than a hundred seconds would serve them all.
    for number in range(400):
        try:
            assert call(str(number).encode(), timeout=FAR_TOO_LONG) == str(number).encode()
            ends.append(grpc.StatusCode.OK)
        except grpc.RpcError as wrong:
            ends.append(wrong.code())
            break
    assert ends[:3] == [grpc.StatusCode.OK] * 3
    assert ends[-1] == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_server_that_is_away_is_unavailable(channel):
    assert refused(channel.unary_unary("/test.Away/Repeat"), b"").code() == grpc.StatusCode.UNAVAILABLE
