"""curl: every API call over every HTTP version, and HTTP features."""

import json
import subprocess
from dataclasses import dataclass

import pytest
from conftest import TOKENS

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE

VERSIONS = {"1.0": "--http1.0", "1.1": "--http1.1", "2": "--http2-prior-knowledge"}

# Before 8.0 curl cannot reuse an HTTP/2 connection with prior knowledge (curl issue 10634).
CURL = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
REUSING = pytest.mark.parametrize("curl", [*VERSIONS][: 3 if int(CURL.split(".")[0]) >= 8 else 2], indirect=True)


@dataclass
class Answer:
    status: int
    version: str
    # By lower-case name.
    fields: dict
    body: bytes
    # Number of interim responses before it, such as 100.
    interim: list
    connections: int

    @property
    def json(self):
        return json.loads(self.body)

    def is_problem(self, status, code):
        assert self.status == status, self
        assert self.fields["content-type"] == "application/problem+json", self
        assert (self.json["code"], self.json["status"]) == (code, status), self
        assert self.json["detail"] and self.json["title"], self
        return self.json


class Curl:
    """Calls a server with a fixed HTTP version."""

    def __init__(self, server, folder, version="1.1"):
        self.server, self.folder, self.version = server, folder, version

    def __call__(self, method, path, body=None, *options, token=None, send=None):
        """Sends a JSON body, or raw bytes."""
        command = ["curl", "--silent", "--show-error", "--max-time", "120", "--path-as-is", VERSIONS[self.version]]
        command += ["--head"] if method == "HEAD" else ["--request", method]
        command += ["--dump-header", self.folder / "head", "--output", self.folder / "body"]
        command += ["--write-out", "%{http_version} %{num_connects}"]
        if token:
            command += ["--header", f"Authorization: Bearer {token}"]
        if body is not None:
            send = json.dumps(body).encode()
        if send is not None:
            (self.folder / "send").write_bytes(send)
            command += ["--header", "Content-Type: application/json", "--data-binary", f"@{self.folder / 'send'}"]
        (self.folder / "body").write_bytes(b"")
        ran = subprocess.run([*command, *options, self.server.url + path], capture_output=True, text=True)
        assert ran.returncode == 0, f"{method} {path}: {ran.stderr}"
        return self.answer(method, *ran.stdout.split())

    def answer(self, method, version, connections):
        blocks = (self.folder / "head").read_text().replace("\r\n", "\n").strip("\n").split("\n\n")
        statuses = [int(block.split()[1]) for block in blocks]
        lines = blocks[-1].split("\n")[1:]
        fields = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        # For HEAD curl writes the header where the body would be.
        body = b"" if method == "HEAD" else (self.folder / "body").read_bytes()
        return Answer(statuses[-1], version, fields, body, statuses[:-1], int(connections))


@pytest.fixture(params=VERSIONS, ids=[f"HTTP-{version}" for version in VERSIONS])
def curl(request, server, tmp_path):
    return Curl(server, tmp_path, request.param)


@pytest.fixture
def curl11(server, tmp_path):
    return Curl(server, tmp_path)


def total(limit, **fields):
    return {"policy": "total", "limit": limit, **fields}


# API calls.


def test_duplicate_limit_is_refused(curl, name):
    body = {"id": f"sale/{name}", "items": [total(5)]}
    added = curl("POST", "/v1/limits", body)
    assert (added.status, float(added.version)) == (201, float(curl.version)), added
    assert added.fields["location"] == f"/v1/limits/sale%2F{name}"
    assert added.json["items"][0] == {"policy": "total", "limit": 5, "per": "all"}
    assert curl("GET", added.fields["location"]).json == added.json
    curl("POST", "/v1/limits", body).is_problem(409, "limit_exists")


def test_all_errors_of_a_limit_are_reported(curl, name):
    items = [{"policy": "slidng", "limit": 1}, {"policy": "bucket", "limit": 1, "window": "1s", "burst": 0}]
    problem = curl("POST", "/v1/limits", {"id": name, "items": items}).is_problem(422, "invalid_limit")
    assert {error["field"] for error in problem["errors"]} == {"items[0].policy", "items[1].burst"}
    curl("POST", "/v1/limits", send=b"{").is_problem(400, "bad_request")
    unknown = {"id": name, "items": [total(1)], "itms": []}
    curl("POST", "/v1/limits", unknown).is_problem(400, "bad_request")
    curl("GET", f"/v1/limits/{name}").is_problem(404, "unknown_limit")


def test_list_is_paged(curl, name):
    for letter in "abc":
        curl.server.add(f"{name}/{letter}", total(1))
    first = curl("GET", f"/v1/limits?prefix={name}/&limit=2")
    assert first.status == 200 and first.fields["etag"]
    assert [limit["id"] for limit in first.json["limits"]] == [f"{name}/a", f"{name}/b"]
    second = curl("GET", f"/v1/limits?prefix={name}/&limit=2&after={first.json['next']}")
    assert [limit["id"] for limit in second.json["limits"]] == [f"{name}/c"]
    assert second.json["next"] is None
    curl("GET", "/v1/limits?limit=0").is_problem(400, "bad_request")
    curl("GET", "/v1/limits?color=red").is_problem(400, "bad_request")


def test_replaced_limit_keeps_its_counts(curl, name):
    path = f"/v1/limits/{curl.server.add(name, total(5))}"
    curl("POST", "/v1/acquire", {"limit_id": name, "count": 3})
    tag = curl("GET", path).fields["etag"]
    changed = curl("PUT", path, {"items": [total(9)]}, "--header", f"If-Match: {tag}")
    assert changed.status == 200 and changed.fields["etag"] != tag
    stale = curl("PUT", path, {"items": [total(7)]}, "--header", f"If-Match: {tag}")
    stale.is_problem(412, "stale_etag")
    assert curl("PUT", path, {"items": [total(8)]}, "--header", "If-Match: *").status == 200
    reading = curl("POST", "/v1/peek", {"limit_id": name}).json["readings"][0]
    assert (reading["limit"], reading["used"], reading["remaining"]) == (8, 3, 5)
    curl("PUT", f"{path}-other", {"items": [total(8)]}).is_problem(404, "unknown_limit")
    curl("PUT", path, {"items": []}).is_problem(422, "invalid_limit")


def test_limit_is_deleted(curl, name):
    path = f"/v1/limits/{curl.server.add(name, total(5))}"
    curl("DELETE", path, None, "--header", 'If-Match: "another"').is_problem(412, "stale_etag")
    removed = curl("DELETE", path)
    assert (removed.status, removed.body) == (204, b"")
    assert "content-length" not in removed.fields or removed.fields["content-length"] == "0"
    curl("DELETE", path).is_problem(404, "unknown_limit")


def test_usage_is_read_and_reset(curl, name):
    path = f"/v1/limits/{curl.server.add(name, total(5), total(3, per='key'))}"
    for key in ("ada", "ada", "bob"):
        assert curl("POST", "/v1/acquire", {"limit_id": name, "limit_key": key}).json["allowed"]
    usage = curl("GET", f"{path}/usage?limit_key=ada")
    assert usage.status == 200
    counted = {status["item"]: status["current_count"] for status in usage.json["policy_status"]}
    assert counted["key/total"] == 2, usage.json
    assert curl("POST", f"{path}/reset", {"limit_key": "ada"}).status == 204
    assert curl("POST", "/v1/peek", {"limit_id": name, "limit_key": "ada"}).json["readings"][1]["used"] == 0
    assert curl("POST", "/v1/peek", {"limit_id": name, "limit_key": "bob"}).json["readings"][1]["used"] == 1
    assert curl("POST", f"{path}/reset").status == 204
    assert curl("GET", f"{path}/usage").json["count"] == 0
    curl("GET", f"{path}-other/usage").is_problem(404, "unknown_limit")
    curl("POST", f"{path}-other/reset", {}).is_problem(404, "unknown_limit")


def test_override_applies_to_its_key(curl, name):
    limit = f"/v1/limits/{curl.server.add(name, total(1, per='key'))}"
    path = f"{limit}/overrides/vip%2F7"
    body = {"item": "key/total", "limit": 20, "until": "2099-01-01T00:00:00Z"}
    put = curl("PUT", path, body)
    assert (put.status, put.json) == (200, {"key": "vip/7", **body})
    assert curl("POST", "/v1/peek", {"limit_id": name, "limit_key": "vip/7"}).json["readings"][0]["limit"] == 20
    assert curl("POST", "/v1/peek", {"limit_id": name, "limit_key": "ada"}).json["readings"][0]["limit"] == 1
    curl("PUT", path, {"item": "key/day", "limit": 1}).is_problem(422, "invalid_limit")
    curl("PUT", f"{limit}-other/overrides/u", body).is_problem(404, "unknown_limit")
    assert curl("DELETE", path).status == 204
    curl("DELETE", path).is_problem(404, "not_found")


def test_acquire_and_peek_decide(curl, name):
    curl.server.add(name, total(1), {"policy": "day", "limit": 9, "per": "key"})
    ask = {"limit_id": name, "limit_key": "ada"}
    peeked = curl("POST", "/v1/peek", ask)
    assert peeked.status == 200 and peeked.json["allowed"]
    granted = curl("POST", "/v1/acquire", ask).json
    assert granted["allowed"] and granted["lease"] is None and granted["binding"] is None
    refused = curl("POST", "/v1/acquire", ask)
    assert refused.status == 200, "a refusal is an answer"
    assert refused.fields["content-type"] == "application/json"
    assert refused.json["binding"] == {"limit_id": name, "item": "all/total"}
    assert (refused.json["allowed"], refused.json["wait"], refused.json["retry_after_ms"]) == (False, "never", None)
    curl("POST", "/v1/acquire", {"limit_id": f"{name}-other"}).is_problem(404, "unknown_limit")
    curl("POST", "/v1/acquire", {"limit_id": name}).is_problem(400, "bad_request")
    curl("POST", "/v1/acquire", {**ask, "color": "red"}).is_problem(400, "bad_request")


def test_set_is_granted_all_or_nothing(curl, name):
    one, two = curl.server.add(f"{name}-1", total(5)), curl.server.add(f"{name}-2", total(1))
    asks = {"asks": [{"limit_id": one, "count": 2}, {"limit_id": two}], "request_id": name}
    first = curl("POST", "/v1/acquire", asks).json
    assert first["allowed"] and [reading["used"] for reading in first["readings"]] == [2, 1]
    assert curl("POST", "/v1/acquire", asks).json == first, "a repeated request is answered again"
    reused = {"asks": asks["asks"][:1], "request_id": name}
    curl("POST", "/v1/acquire", reused).is_problem(409, "request_id_reused")
    assert not curl("POST", "/v1/acquire", {"asks": asks["asks"]}).json["allowed"]
    assert curl("POST", "/v1/peek", {"limit_id": one}).json["readings"][0]["used"] == 2, "nothing was taken"


def test_lease_is_renewed_released_and_settled(curl, name):
    curl.server.add(name, {"policy": "concurrency", "limit": 1}, total(100))
    lease = curl("POST", "/v1/acquire", {"limit_id": name}).json["lease"]
    renewed = curl("POST", "/v1/renew", {"lease_id": lease["id"], "ttl_ms": 3_600_000})
    assert renewed.status == 200 and renewed.json["expires_at"] > lease["expires_at"]
    for released in (True, False):
        answer = curl("POST", "/v1/release", {"lease_id": lease["id"]})
        assert (answer.status, answer.json) == (200, {"released": released})
    curl("POST", "/v1/renew", {"lease_id": lease["id"], "ttl_ms": 1000}).is_problem(410, "unknown_lease")
    held = curl("POST", "/v1/acquire", {"limit_id": name, "count": 50, "hold": True}).json
    settle = {"lease_id": held["lease"]["id"], "actual": 7}
    assert curl("POST", "/v1/settle", settle).json == {"settled": True}
    assert curl("POST", "/v1/settle", settle).json == {"settled": True}, "again is the same"
    used = {reading["item"]: reading["used"] for reading in curl("POST", "/v1/peek", {"limit_id": name}).json["readings"]}
    assert used == {"all/concurrency": 0, "all/total": 8}, "one, and seven in place of fifty"
    curl("POST", "/v1/settle", {"lease_id": "none", "actual": 7}).is_problem(410, "unknown_lease")


def test_task_begins_and_ends(curl, name):
    path = f"/v1/activity/{name}"
    begun = curl("POST", path)
    assert begun.status == 201 and begun.json["expires_at"] > begun.json["timestamp"]
    task = f"{path}/{begun.json['active_id']}"
    assert curl("GET", path).json["user_active"] == 1
    assert curl("POST", f"{task}/renew", {"ttl_ms": 600_000}).json["expires_at"] > begun.json["expires_at"]
    assert [curl("DELETE", task).json["removed"] for _ in range(2)] == [1, 0]
    curl("POST", f"{task}/renew").is_problem(410, "unknown_lease")
    assert [curl("POST", path).status for _ in range(5)] == [201] * 4 + [429]
    refused = curl("POST", path)
    refused.is_problem(429, "user_window")
    assert 1 <= int(refused.fields["retry-after"]) <= 16
    assert curl("DELETE", path).json == {"removed": 4}


def test_task_events_are_streamed(curl, name):
    task = curl("POST", f"/v1/activity/{name}", {"ttl_ms": 2000}).json["active_id"]
    told = curl("GET", f"/v1/activity/{name}/{task}/events")
    assert (told.status, told.fields["content-type"]) == (200, "text/event-stream")
    events = [line for line in told.body.decode().splitlines() if line.startswith("event: ")]
    assert events == ["event: active", "event: ended"], "and the answer is over"
    assert 'data: {"reason":"expired"}' in told.body.decode()
    curl("GET", f"/v1/activity/{name}/{task}/events").is_problem(410, "unknown_lease")


def test_gate_grants_and_refuses(curl, name):
    curl.server.add(f"api/{name}", {"policy": "interval", "limit": 2, "window": "1d", "per": "key"})
    path = f"/v1/gate/api%2F{name}/ada"
    opened = curl("GET", path)
    assert opened.status == 200 and opened.json["allowed"]
    assert opened.fields["cache-control"] == "no-store"
    assert ";q=2;w=86400" in opened.fields["ratelimit-policy"], opened.fields
    assert ";r=1;t=86400" in opened.fields["ratelimit"], opened.fields
    assert "retry-after" not in opened.fields
    assert curl("GET", f"/v1/gate?limit_id=api/{name}&limit_key=ada").status == 200
    closed = curl("GET", path)
    assert closed.status == 429 and closed.fields["content-type"] == "application/problem+json"
    assert closed.fields["cache-control"] == "no-store"
    assert ";r=0" in closed.fields["ratelimit"] and ";q=2" in closed.fields["ratelimit-policy"], closed.fields
    assert 86_000 < int(closed.fields["retry-after"]) <= 86_400
    assert curl("GET", f"/v1/gate/api%2F{name}/bob").status == 200
    curl("GET", f"/v1/gate/api%2F{name}-other/ada").is_problem(404, "unknown_limit")
    curl("GET", "/v1/gate?limit_key=ada").is_problem(400, "bad_request")


def test_gate_without_known_wait_has_no_retry_after(curl, name):
    curl.server.add(name, total(0))
    closed = curl("GET", f"/v1/gate/{name}/ada")
    assert closed.status == 429 and "retry-after" not in closed.fields


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"])
def test_gate_accepts_any_method(curl, name, method):
    curl.server.add(name, total(1))
    assert curl(method, f"/v1/gate/{name}/ada").status == 200
    assert curl(method, f"/v1/gate/{name}/ada").status == 429


def test_health_and_metrics_are_served(curl):
    assert curl("GET", "/healthz").json == {"status": "ok"}
    assert curl("GET", "/readyz").json["status"] == "ready"
    assert curl("GET", "/openapi.json").json["openapi"].startswith("3.1")
    metrics = curl("GET", "/metrics")
    assert metrics.fields["content-type"].startswith("text/plain") and b"tidegate_build_info" in metrics.body
    page = curl("GET", "/")
    assert page.fields["content-type"].startswith("text/html") and b"Tidegate" in page.body


def test_unknown_path_is_not_found(curl):
    curl("GET", "/v2/acquire").is_problem(404, "not_found")
    curl("GET", "/v1/limits/").is_problem(404, "not_found")
    for method, path, allow in [
        ("GET", "/v1/acquire", "POST"),
        ("HEAD", "/v1/acquire", "POST"),
        ("OPTIONS", "/v1/limits", "GET, HEAD, POST"),
        ("PATCH", "/v1/limits/x", "GET, HEAD, PUT, DELETE"),
        ("DELETE", "/healthz", "GET, HEAD"),
    ]:
        wrong = curl(method, path)
        assert (wrong.status, wrong.fields["allow"]) == (405, allow), f"{method} {path}"
    curl("GET", "/v1/limits/100%").is_problem(400, "bad_request")
    curl("GET", "/v1/limits/%FF").is_problem(400, "bad_request")


# HTTP features.


def test_head_equals_get_without_body(curl, name):
    curl.server.add(name, total(5))
    paths = ["/", "/healthz", "/readyz", "/openapi.json", "/v1/limits", f"/v1/limits/{name}", f"/v1/limits/{name}/usage"]
    for path in paths:
        got, head = curl("GET", path), curl("HEAD", path)
        assert head.status == got.status == 200, path
        assert head.body == b"" and got.body, path
        for field in ("content-type", "content-length", "etag"):
            assert head.fields.get(field) == got.fields.get(field), f"{path}: {field}"


def padded(body, size):
    """The body, padded with spaces to this size."""
    text = json.dumps(body).encode()
    return text[:-1] + b" " * (size - len(text)) + text[-1:]


CHUNKED = ("--header", "Transfer-Encoding: chunked")


@pytest.mark.parametrize("size", [100, 10 * KIBIBYTE, 48 * KIBIBYTE, 48 * KIBIBYTE + 1, 300 * KIBIBYTE, MEBIBYTE])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_body_of_one_mebibyte_is_accepted(curl, name, size, framing):
    if framing == "chunks" and curl.version != "1.1":
        # Only HTTP/1.1 has chunked encoding. Other versions omit the length, or mark the end.
        framing = "length"
    curl.server.add(name, total(5))
    options = CHUNKED if framing == "chunks" else ()
    answer = curl("POST", "/v1/acquire", None, *options, send=padded({"limit_id": name}, size))
    assert answer.status == 200 and answer.json["allowed"], answer


@pytest.mark.parametrize("size", [MEBIBYTE + 1, 5 * MEBIBYTE])
def test_larger_body_is_refused(curl, name, size):
    curl.server.add(name, total(5))
    body = padded({"limit_id": name}, size)
    curl("POST", "/v1/acquire", send=body).is_problem(413, "too_large")
    if curl.version == "1.1":
        curl("POST", "/v1/acquire", None, *CHUNKED, send=body).is_problem(413, "too_large")
    assert curl("POST", "/v1/peek", {"limit_id": name}).json["readings"][0]["used"] == 0


def test_expect_100_continue_is_answered(curl11, name):
    curl11.server.add(name, total(5))
    expect = ("--header", "Expect: 100-continue", "--expect100-timeout", "60")
    large = curl11("POST", "/v1/acquire", None, *expect, send=padded({"limit_id": name}, 900 * KIBIBYTE))
    assert (large.status, large.interim) == (200, [100])
    small = curl11("POST", "/v1/acquire", {"limit_id": name}, *expect)
    assert (small.status, small.interim) == (200, [100])


@REUSING
def test_connection_is_reused(curl, name):
    curl.server.add(name, total(100))
    urls = [f"{curl.server.url}/v1/gate/{name}/ada"] * 5
    # HTTP/1.0 closes a connection after the response unless keep-alive is negotiated.
    alive = ["--header", "Connection: keep-alive"] if curl.version == "1.0" else []
    each = [word for url in urls for word in ["--output", "/dev/null", url]]
    command = ["curl", VERSIONS[curl.version], "--silent", "--show-error", *alive, "--write-out", "%{http_code} %{num_connects}\\n", *each]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:5]
    assert lines == ["200 1"] + ["200 0"] * 4


def test_plain_and_chunked_requests_share_a_connection(curl11, name):
    """Plain, chunked and Expect requests on one connection, in any order."""
    curl11.server.add(name, total(100))
    url, command = f"{curl11.server.url}/v1/acquire", ["curl", "--silent", "--show-error"]
    body = json.dumps({"limit_id": name})
    kinds = [[], ["--header", "Expect: 100-continue"], [*CHUNKED], [], ["--header", "TE: trailers"], []]
    for index, kind in enumerate(kinds):
        command += ["--next"] if index else []
        command += ["--output", "/dev/null", "--write-out", "%{http_code} %{num_connects}\\n", "--data", body, *kind, url]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert lines == ["200 1"] + ["200 0"] * 5


@REUSING
def test_concurrent_calls_never_exceed_the_limit(curl, name):
    """With HTTP/2 all calls share one connection."""
    curl.server.add(name, total(60))
    command = ["curl", "--silent", "--show-error", VERSIONS[curl.version], "--parallel", "--parallel-max", "100"]
    for _ in range(100):
        command += ["--output", "/dev/null", f"{curl.server.url}/v1/gate/{name}/ada"]
    ran = subprocess.run([*command, "--write-out", "%{http_code}\\n"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split("\n")[:-1]) == ["200"] * 60 + ["429"] * 40


# Tokens.


@pytest.fixture(params=VERSIONS, ids=[f"HTTP-{version}" for version in VERSIONS])
def locked(request, guarded, tmp_path):
    return Curl(guarded, tmp_path, request.param)


def test_health_needs_no_token(locked):
    for path in ("/", "/healthz", "/readyz", "/openapi.json"):
        assert locked("GET", path).status == 200, path
    for method, path in [("GET", "/metrics"), ("GET", "/v1/limits"), ("POST", "/v1/acquire"), ("GET", "/v1/gate/x/y")]:
        told = locked(method, path)
        told.is_problem(401, "unauthorized")
        assert told.fields["www-authenticate"] == "Bearer"
    locked("GET", "/v1/limits", token="tg_wrong").is_problem(401, "unauthorized")


@pytest.mark.parametrize("size", [100, 300 * KIBIBYTE, 5 * MEBIBYTE])
def test_request_without_token_is_unauthorized(locked, size):
    locked("POST", "/v1/acquire", send=padded({"limit_id": "x"}, size)).is_problem(401, "unauthorized")


def test_role_permits_its_calls(locked, name):
    limit = {"id": name, "items": [total(5)]}
    for role in ("read", "decide"):
        locked("POST", "/v1/limits", limit, token=TOKENS[role]).is_problem(403, "forbidden")
    assert locked("POST", "/v1/limits", limit, token=TOKENS["admin"]).status == 201
    ask = {"limit_id": name}
    locked("POST", "/v1/acquire", ask, token=TOKENS["read"]).is_problem(403, "forbidden")
    assert locked("POST", "/v1/peek", ask, token=TOKENS["read"]).json["allowed"]
    assert locked("POST", "/v1/acquire", ask, token=TOKENS["decide"]).json["allowed"]
    assert locked("GET", f"/v1/gate/{name}/ada", token=TOKENS["decide"]).status == 200
    assert locked("GET", "/metrics", token=TOKENS["read"]).status == 200


def test_token_is_restricted_to_its_prefix(locked, name):
    shop, other = locked.server.add(f"shop/{name}", total(5)), locked.server.add(name, total(5))
    token = TOKENS["shop"]
    assert locked("POST", "/v1/acquire", {"limit_id": shop}, token=token).json["allowed"]
    locked("POST", "/v1/acquire", {"limit_id": other}, token=token).is_problem(403, "forbidden")
    listed = locked("GET", "/v1/limits", token=token).json["limits"]
    assert listed and all(limit["id"].startswith("shop/") for limit in listed)
