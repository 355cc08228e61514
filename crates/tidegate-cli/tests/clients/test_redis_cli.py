"""redis-cli: single commands, commands from a file, and raw protocol through a pipe."""

import json
import os
import subprocess

import pytest
from conftest import TOKENS


@pytest.fixture
def cli(server):
    return lambda *words, **options: redis_cli(server, *words, **options)


def redis_cli(server, *words, stdin="", env=None, code=0):
    """The output of redis-cli with these arguments."""
    command = ["redis-cli", "-h", server.resp_host, "-p", str(server.resp_port), *map(str, words)]
    stdin = stdin if isinstance(stdin, bytes) else stdin.encode()
    ran = subprocess.run(command, input=stdin, capture_output=True, timeout=120, env={**os.environ, **(env or {})})
    assert ran.returncode == code, f"{command}: {ran.returncode}\n{ran.stdout.decode()}{ran.stderr.decode()}"
    return ran.stdout.decode() + ran.stderr.decode()


def frames(*commands):
    """Commands encoded as RESP."""
    text = b""
    for command in commands:
        words = [word.encode() for word in command]
        text += b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return text


def test_acquire_is_a_command(server, cli, name):
    server.add(name, {"policy": "total", "limit": 2})
    assert cli("PING") == "PONG\n"
    assert cli("TG.PEEK", name, "ada").split("\n")[:3] == ["1", "2", "2"]
    assert cli("TG.ACQUIRE", name, "ada", 2) == "1\n2\n0\n-1\n-1\n\n\n"
    assert cli("tg.acquire", name, "ada") == "0\n2\n0\n-1\n-1\nall/total\n\n"


def test_replies_are_formatted_as_usual(server, cli, name):
    server.add(name, {"policy": "total", "limit": 2})
    shown = cli("--no-raw", "TG.ACQUIRE", name, "ada")
    assert shown.startswith('1) (integer) 1\n2) (integer) 2\n3) (integer) 1\n'), shown
    assert cli("--no-raw", "TG.RENEW", "no-such-lease", 1000) == "(nil)\n"
    assert cli("--no-raw", "TG.RELEASE", "no-such-lease") == "(integer) 0\n"


def test_resp3_is_negotiated(server, cli, name):
    server.add(name, {"policy": "total", "limit": 2})
    assert cli("-3", "PING") == "PONG\n"
    assert "1# \"server\" => \"tidegate\"" in cli("-3", "--no-raw", "HELLO")
    assert "3# \"proto\" => (integer) 3" in cli("-3", "--no-raw", "HELLO")
    assert json.loads(cli("-3", "--json", "TG.ACQUIRE", name, "ada")) == [1, 2, 1, -1, -1, "", ""]
    assert json.loads(cli("-3", "--json", "TG.RENEW", "no-such-lease", 1000)) is None


def test_lease_is_acquired_and_released(server, cli, name):
    server.add(name, {"policy": "concurrency", "limit": 1})
    lease = cli("TG.ACQUIRE", name, "ada").split("\n")[6]
    assert lease
    assert int(cli("TG.RENEW", lease, 60000)) > 1_700_000_000_000
    assert cli("TG.RELEASE", lease) == "1\n"
    assert cli("TG.RELEASE", lease) == "0\n"


def test_cl_throttle_and_throttle_are_answered(cli, name):
    assert cli("CL.THROTTLE", name, 1, 1, 86400).split("\n")[:4] == ["0", "2", "1", "-1"]
    assert cli("THROTTLE", name, 1, 1, 86400).split("\n")[:3] == ["1", "1", "0"]


def test_errors_set_the_exit_code(cli):
    assert cli("TG.ACQUIRE", "no-such-limit", "ada") == "NOLIMIT unknown limit 'no-such-limit'\n\n"
    assert "wrong number of arguments" in cli("-e", "TG.ACQUIRE", code=1)
    assert "unknown command 'SET'" in cli("-e", "SET", "a", "b", code=1)
    assert "out of range" in cli("-n", 1, "PING")


def test_commands_are_read_from_a_file(server, cli, name):
    server.add(name, {"policy": "total", "limit": 3})
    script = f"PING\n\nTG.ACQUIRE {name} ada\nECHO \"two words\"\nTG.ACQUIRE {name} ada 2\nQUIT\n"
    answers = cli(stdin=script)
    assert answers.startswith("PONG\n"), answers
    assert "two words\n" in answers
    assert server_remaining(cli, name) == 0


def test_a_command_is_repeated(server, cli, name):
    server.add(name, {"policy": "total", "limit": 10})
    cli("-r", 4, "TG.ACQUIRE", name, "ada")
    assert server_remaining(cli, name) == 6


def test_last_argument_is_read_from_stdin(server, cli, name):
    server.add(name, {"policy": "total", "limit": 1, "per": "key"})
    key = bytes(range(256))
    assert cli("-x", "TG.ACQUIRE", name, stdin=key).startswith("1\n")
    assert cli("-x", "TG.ACQUIRE", name, stdin=key).startswith("0\n")


def test_raw_protocol_goes_through_a_pipe(server, cli, name):
    server.add(name, {"policy": "total", "limit": 600})
    many = frames(*[("TG.ACQUIRE", name, f"key-{index}") for index in range(1000)])
    told = cli("--pipe", stdin=many)
    assert "errors: 0, replies: 1000" in told, told
    assert server_remaining(cli, name) == 0
    told = cli("--pipe", stdin=frames(("PING",), ("TG.ACQUIRE", "no-such-limit", "ada"), ("PING",)), code=1)
    assert "errors: 1, replies: 3" in told, told


def server_remaining(cli, limit_id):
    return int(cli("TG.PEEK", limit_id, "ada", 0).split("\n")[2])


def test_token_comes_from_flag_or_environment(guarded, name):
    guarded.add(name, {"policy": "total", "limit": 10})
    token = TOKENS["decide"]
    ask = ("TG.ACQUIRE", name, "ada")
    assert redis_cli(guarded, "--no-auth-warning", "-a", token, *ask).startswith("1\n")
    assert redis_cli(guarded, "--no-auth-warning", "--user", "whoever", "--pass", token, *ask).startswith("1\n")
    assert redis_cli(guarded, "--no-auth-warning", "-3", "-a", token, *ask).startswith("1\n")
    assert redis_cli(guarded, *ask, env={"REDISCLI_AUTH": token}).startswith("1\n")
    assert redis_cli(guarded, stdin=f"AUTH {token}\nTG.ACQUIRE {name} ada\n").startswith("OK\n1\n")


def test_request_without_token_is_refused(guarded):
    assert "NOAUTH" in redis_cli(guarded, "TG.ACQUIRE", "login", "ada")
    assert "WRONGPASS" in redis_cli(guarded, "--no-auth-warning", "-a", "tg_wrong", "PING")
    assert "NOPERM" in redis_cli(guarded, "--no-auth-warning", "-a", TOKENS["read"], "TG.ACQUIRE", "login", "ada")
