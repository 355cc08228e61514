"""redis-py as a client of Tidegate: RESP2 and RESP3, pipelines, pools, tokens."""

import asyncio
import threading
import time

import pytest
import redis
from conftest import TOKENS, Server
from redis.backoff import ConstantBackoff, NoBackoff
from redis.retry import Retry

DAY = 86_400


# Timeout of a client, sufficient for a busy machine.
PATIENCE = 60


def connect(server, protocol, **options):
    return redis.Redis(
        server.resp_host,
        server.resp_port,
        protocol=protocol,
        socket_timeout=PATIENCE,
        socket_connect_timeout=PATIENCE,
        **options,
    )


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request):
    return request.param


@pytest.fixture
def client(server, protocol):
    with connect(server, protocol) as connected:
        yield connected


def total(limit, **fields):
    return {"policy": "total", "limit": limit, **fields}


# Connection commands.


def test_connection_commands_are_answered(client):
    assert client.ping() is True
    assert client.echo("hello") == b"hello"
    assert client.info()["server_name"] == "tidegate"
    assert client.client_id() > 0
    assert client.client_setname("tester") and client.client_getname() in (b"tester", "tester")


def test_client_name_and_database_0_are_accepted(server, protocol):
    with connect(server, protocol, client_name="worker-7", db=0) as client:
        assert client.client_getname() in (b"worker-7", "worker-7")
    with connect(server, protocol, db=1) as client, pytest.raises(redis.ResponseError, match="out of range"):
        client.ping()


def test_url_connects(server, protocol):
    with redis.from_url(f"redis://{server.resp}/0?protocol={protocol}") as client:
        assert client.ping() is True


# Decisions.


def test_acquire_stops_at_the_limit(server, client, name):
    server.add(name, total(2))
    ask = ("TG.ACQUIRE", name, "ada")
    assert client.execute_command(*ask) == [1, 2, 1, -1, -1, b"", b""]
    assert client.execute_command(*ask) == [1, 2, 0, -1, -1, b"", b""]
    assert client.execute_command(*ask) == [0, 2, 0, -1, -1, b"all/total", b""]


def test_refusal_has_retry_after(server, client, name):
    server.add(name, {"policy": "interval", "limit": 1, "window": "1d", "per": "key"})
    assert client.execute_command("TG.ACQUIRE", name, "ada")[0] == 1
    allowed, limit, remaining, retry_ms, reset_ms, item, lease = client.execute_command("TG.ACQUIRE", name, "ada")
    assert (allowed, limit, remaining, item, lease) == (0, 1, 0, b"key/interval-86400s", b"")
    assert 0 < retry_ms <= DAY * 1000 and 0 < reset_ms <= DAY * 1000
    assert client.execute_command("TG.ACQUIRE", name, "bob")[0] == 1, "bob has a count of his own"


def test_peek_charges_nothing(server, client, name):
    server.add(name, total(5))
    for _ in range(3):
        assert client.execute_command("TG.PEEK", name, "ada")[:3] == [1, 5, 5]
    assert client.execute_command("TG.PEEK", name, "ada", 6)[0] == 0, "six do not fit"
    assert client.execute_command("TG.ACQUIRE", name, "ada", 5)[:3] == [1, 5, 0], "and nothing was taken so far"


def test_repeated_request_is_charged_once(server, client, name):
    server.add(name, total(5))
    first = client.execute_command("TG.ACQUIRE", name, "ada", 2, "REQ", name)
    assert client.execute_command("TG.ACQUIRE", name, "ada", 2, "REQ", name) == first
    assert client.execute_command("TG.PEEK", name, "ada")[2] == 3
    with pytest.raises(redis.ResponseError):
        client.execute_command("TG.ACQUIRE", name, "ada", 3, "REQ", name)


def test_overlong_key_is_refused(server, client, name):
    server.add(name, total(1, per="key"))
    for key in [b"\x00\xff\r\n $5", "新年".encode(), b"k" * 1024]:
        assert client.execute_command("TG.ACQUIRE", name, key)[0] == 1, key
        assert client.execute_command("TG.ACQUIRE", name, key)[0] == 0, key
    with pytest.raises(redis.ResponseError, match="1024"):
        client.execute_command("TG.ACQUIRE", name, b"k" * 1025)


def test_lease_is_released_once(server, client, name):
    server.add(name, {"policy": "concurrency", "limit": 1, "ttl": "60s"})
    lease = client.execute_command("TG.ACQUIRE", name, "ada")[6]
    assert lease, "a grant of a concurrency item carries a lease"
    assert client.execute_command("TG.ACQUIRE", name, "bob")[0] == 0
    assert client.execute_command("TG.RELEASE", lease) == 1
    assert client.execute_command("TG.RELEASE", lease) == 0
    assert client.execute_command("TG.ACQUIRE", name, "bob")[0] == 1


def test_renewed_lease_stays_valid(server, client, name):
    server.add(name, {"policy": "concurrency", "limit": 1, "ttl": "60s"})
    lease = client.execute_command("TG.ACQUIRE", name, "ada")[6]
    before = time.time() * 1000
    expires = client.execute_command("TG.RENEW", lease, 3_600_000)
    assert before + 3_599_000 <= expires <= time.time() * 1000 + 3_601_000
    assert client.execute_command("TG.RELEASE", lease) == 1
    assert client.execute_command("TG.RENEW", lease, 1000) is None, "it is gone"
    assert client.execute_command("TG.RENEW", "no-such-lease", 1000) is None


# Buckets defined by the command. They refill once a day, so that slow machines see them empty.


def test_cl_throttle_replies_like_redis_cell(client, name):
    ask = ("CL.THROTTLE", name, 2, 1, DAY)
    near = lambda seconds: range(seconds - 60, seconds + 1)  # noqa: E731
    for remaining in (2, 1, 0):
        limited, limit, left, retry, reset = client.execute_command(*ask)
        assert (limited, limit, left, retry) == (0, 3, remaining, -1), "the capacity is max_burst + 1"
        assert reset in near((3 - remaining) * DAY)
    limited, limit, left, retry, reset = client.execute_command(*ask)
    assert (limited, limit, left) == (1, 3, 0)
    assert retry in near(DAY) and reset in near(3 * DAY)
    assert client.execute_command("CL.THROTTLE", f"{name}-all", 2, 1, DAY, 3)[:3] == [0, 3, 0], "all at once"


def test_throttle_replies_like_throttlecrab(client, name):
    ask = ("THROTTLE", name, 2, 1, DAY)
    for remaining in (1, 0):
        allowed, limit, left, reset, retry = client.execute_command(*ask)
        assert (allowed, limit, left, retry) == (1, 2, remaining, 0), "the capacity is max_burst"
        assert 0 < reset <= 2 * DAY
    allowed, limit, left, reset, retry = client.execute_command(*ask)
    assert (allowed, limit, left) == (0, 2, 0)
    assert 0 < retry <= DAY < reset <= 2 * DAY


# Errors raise exceptions, and the connection stays usable.


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("TG.ACQUIRE", "no-such-limit", "ada"), "NOLIMIT unknown limit 'no-such-limit'"),
        (("TG.PEEK", "no-such-limit", "ada"), "NOLIMIT unknown limit 'no-such-limit'"),
        (("TG.ACQUIRE", "one-argument"), "wrong number of arguments for 'tg.acquire' command"),
        (("TG.ACQUIRE", "a", "b", "c", "d", "e", "f"), "wrong number of arguments for 'tg.acquire' command"),
        (("TG.ACQUIRE", "a", "b", "many"), "not an integer"),
        (("TG.ACQUIRE", "a", "b", "-1"), "not an integer"),
        (("TG.ACQUIRE", "a", "b", "1", "QER", "x"), "syntax error"),
        (("TG.RENEW", "lease"), "wrong number of arguments for 'tg.renew' command"),
        (("CL.THROTTLE", "k", 1, 1), "wrong number of arguments for 'cl.throttle' command"),
        (("THROTTLE", "k", 0, 1, 1), "max_burst must be at least 1"),
        (("GET", "k"), "unknown command 'GET'"),
    ],
)
def test_error_reply_raises_an_exception(client, command, message):
    with pytest.raises(redis.ResponseError) as error:
        client.execute_command(*command)
    assert message in str(error.value)
    assert client.ping() is True


def test_oversized_frame_closes_its_connection(client):
    with pytest.raises(redis.RedisError):
        client.execute_command("ECHO", b"x" * 70_000)
    assert client.ping() is True


# Pipelines.


@pytest.mark.parametrize("depth", [1, 2, 3, 10, 100, 1000])
def test_pipeline_is_answered_in_order(server, client, name, depth):
    server.add(name, total(depth // 2))
    pipeline = client.pipeline(transaction=False)
    for index in range(depth):
        pipeline.execute_command("TG.ACQUIRE", name, f"key-{index}")
        pipeline.echo(f"{index}")
    answers = pipeline.execute()
    assert answers[1::2] == [b"%d" % index for index in range(depth)]
    granted = depth // 2
    assert [answer[0] for answer in answers[::2]] == [1] * granted + [0] * (depth - granted)
    assert [answer[2] for answer in answers[::2]] == [*range(granted - 1, -1, -1), *[0] * (depth - granted)]


def test_error_in_pipeline_keeps_its_position(server, client, name):
    server.add(name, total(1000))
    pipeline = client.pipeline(transaction=False)
    for index in range(300):
        pipeline.execute_command("TG.ACQUIRE", name if index % 3 else "no-such-limit", "ada")
    answers = pipeline.execute(raise_on_error=False)
    for index, answer in enumerate(answers):
        is_mistake = isinstance(answer, redis.ResponseError)
        assert is_mistake == (index % 3 == 0), f"{index}: {answer}"
    assert client.execute_command("TG.PEEK", name, "ada")[2] == 800


def test_transaction_is_refused_without_hanging(server, client, name):
    server.add(name, total(10))
    pipeline = client.pipeline(transaction=True)
    pipeline.execute_command("TG.ACQUIRE", name, "ada")
    with pytest.raises(redis.RedisError):
        pipeline.execute()
    assert client.ping() is True


# Pools, threads and tasks: concurrent clients are granted exactly the limit.

THREADS = 16


def admitted_by_threads(ask, times):
    """Number of grants when all threads call `ask` this many times."""
    counts, start = [], threading.Barrier(THREADS)

    def work():
        start.wait()
        counts.append(sum(ask() for _ in range(times)))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == THREADS, "a thread failed"
    return sum(counts)


def test_threads_with_own_connections_are_granted_exactly(server, client, name):
    server.add(name, total(1000))
    assert admitted_by_threads(lambda: client.execute_command("TG.ACQUIRE", name, "ada")[0], 100) == 1000
    assert client.execute_command("TG.PEEK", name, "ada", 0)[:3] == [1, 1000, 0]


def test_threads_with_shared_pool_are_granted_exactly(server, protocol, name):
    server.add(name, total(500))
    pool = redis.BlockingConnectionPool(
        max_connections=3,
        timeout=PATIENCE,
        host=server.resp_host,
        port=server.resp_port,
        protocol=protocol,
        socket_timeout=PATIENCE,
    )
    with redis.Redis(connection_pool=pool) as client:
        assert admitted_by_threads(lambda: client.execute_command("TG.ACQUIRE", name, "ada")[0], 50) == 500
    pool.disconnect()


def test_threads_with_pipelines_are_granted_exactly(server, client, name):
    server.add(name, total(1000))

    def ask():
        pipeline = client.pipeline(transaction=False)
        for _ in range(50):
            pipeline.execute_command("TG.ACQUIRE", name, "ada")
        return sum(answer[0] for answer in pipeline.execute())

    assert admitted_by_threads(ask, 4) == 1000


def test_async_tasks_are_granted_exactly(server, protocol, name):
    server.add(name, total(100))

    async def ask_all():
        pool = redis.asyncio.BlockingConnectionPool(
            max_connections=16,
            timeout=PATIENCE,
            host=server.resp_host,
            port=server.resp_port,
            protocol=protocol,
            socket_timeout=PATIENCE,
        )
        async with redis.asyncio.Redis(connection_pool=pool) as client:
            asks = (client.execute_command("TG.ACQUIRE", name, "ada") for _ in range(160))
            answers = await asyncio.gather(*asks)
        await pool.disconnect()
        return sum(answer[0] for answer in answers)

    assert asyncio.run(ask_all()) == 100


# Reconnects.


def test_client_reconnects_after_quit(client):
    before = client.client_id()
    assert client.execute_command("QUIT") in (b"OK", True)
    assert client.ping() is True
    assert client.client_id() != before, "it is another connection"


def test_client_reconnects_after_server_restart(tmp_path, protocol, name):
    server = Server(tmp_path, []).start()
    retry = Retry(ConstantBackoff(0.05), 20)
    with connect(server, protocol, retry=retry, retry_on_error=[redis.ConnectionError]) as client:
        server.add(name, total(3))
        assert client.execute_command("TG.ACQUIRE", name, "ada")[0] == 1
        server.stop()
        server.start()
        assert client.ping() is True
        assert client.execute_command("TG.ACQUIRE", name, "ada")[:3] == [1, 3, 1], "and it has forgotten nothing"
    server.stop()


# Tokens.


def test_token_is_the_password_of_any_user(guarded, protocol, name):
    guarded.add(name, total(2))
    for user in ({}, {"username": "default"}, {"username": "whoever"}):
        with connect(guarded, protocol, password=TOKENS["decide"], **user) as client:
            assert client.execute_command("TG.PEEK", name, "ada")[0] == 1
    with redis.from_url(f"redis://:{TOKENS['decide']}@{guarded.resp}?protocol={protocol}") as client:
        assert client.execute_command("TG.ACQUIRE", name, "ada")[0] == 1


def test_wrong_token_is_refused(guarded, protocol):
    # Retries of the library cannot succeed.
    once = Retry(NoBackoff(), 0)
    wrong = connect(guarded, protocol, password="tg_wrong", retry=once)
    with wrong as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    with connect(guarded, protocol, retry=once) as client, pytest.raises(redis.AuthenticationError):
        client.execute_command("TG.ACQUIRE", "login", "ada")


def test_token_permits_its_role(guarded, protocol, name):
    guarded.add(name, total(2))
    with connect(guarded, protocol, password=TOKENS["read"]) as client:
        assert client.execute_command("TG.PEEK", name, "ada")[0] == 1
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("TG.ACQUIRE", name, "ada")
    with connect(guarded, protocol, password=TOKENS["shop"]) as client:
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("TG.ACQUIRE", name, "ada")
        shop = guarded.add(f"shop/{name}", total(1))
        assert client.execute_command("TG.ACQUIRE", shop, "ada")[0] == 1


def test_unneeded_token_is_accepted(server, protocol):
    with connect(server, protocol, password="tg_any") as client:
        assert client.ping() is True
