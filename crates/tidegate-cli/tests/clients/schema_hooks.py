"""Constraints that the schema cannot express, and limits that exist during the run."""

import os

import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.core.parameters import ParameterLocation
from schemathesis.openapi.checks import IgnoredAuth

TOKEN = os.environ["TIDEGATE_TOKEN"]
BASE = os.environ["TIDEGATE_HTTP"]

PER_KEY = {"name": "own", "policy": "total", "limit": 10, "per": "key"}

# The same ids are in schemathesis.toml. Only one has an item per key, because the key is optional in requests.
LIMITS = {
    "login": [{"policy": "sliding", "limit": 50, "window": "15s"}, {"policy": "day", "limit": 1000}],
    "shop/sale": [{"policy": "total", "limit": 100}, {"policy": "bucket", "limit": 10, "window": "1s"}, PER_KEY],
    "workers": [{"policy": "concurrency", "limit": 5}],
}
PATIENCE_MS = 5


@schemathesis.hook
def after_load_schema(context, schema):
    """Creates the limits."""
    for limit_id in LIMITS:
        put(limit_id)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Removes wait times: requests would wait up to a minute."""
    wait = case.body.get("max_wait_ms") if isinstance(case.body, dict) else None
    if isinstance(wait, int) and PATIENCE_MS < wait <= 60_000:
        case.body = {**case.body, "max_wait_ms": PATIENCE_MS}


@schemathesis.hook
def after_call(context, case, response):
    """Restores a limit that was deleted or replaced."""
    limit_id = case.path_parameters.get("id")
    if case.method in ("DELETE", "PUT") and response.status_code < 300 and limit_id in LIMITS:
        put(limit_id)
    # Ends tasks that the run began, because slots are limited.
    if case.operation.definition.raw.get("operationId") == "setActive" and response.status_code == 201:
        ended = session().post(f"{BASE}/v1/release", json={"lease_id": response.json()["active_id"]})
        assert ended.ok, ended.text


def session():
    call = requests.Session()
    call.headers["Authorization"] = f"Bearer {TOKEN}"
    return call


def put(limit_id):
    call = session()
    body = {"id": limit_id, "items": LIMITS[limit_id]}
    added = call.post(f"{BASE}/v1/limits", json=body)
    if added.status_code == 409:
        added = call.put(f"{BASE}/v1/limits/{limit_id.replace('/', '%2F')}", json=body)
    assert added.ok, added.text


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Ignores false failures."""
    # Whether a key is required depends on the limit, not on the schema.
    needs_key = response.status_code == 400 and "the ask needs a limit_key" in response.text
    # An omitted optional body is valid.
    left_out = isinstance(failure, AcceptedNegativeData) and not isinstance(case.body, (dict, list, str, bytes, int, float))
    # Too many invalid tokens are answered with 429 instead of 401.
    too_often = isinstance(failure, IgnoredAuth) and "got `429 " in failure.message
    return not needs_key and not too_often and not (left_out and has_only_wrong_body(case))


def has_only_wrong_body(case):
    wrong = [part for part, about in case.meta.components.items() if about.mode == GenerationMode.NEGATIVE]
    return wrong == [ParameterLocation.BODY] and not any(body.is_required for body in case.operation.body)


@schemathesis.hook
def map_case(context, case):
    """Adjusts valid data to constraints outside the schema. Invalid data stays invalid."""
    if case.meta is None or case.meta.generation.mode == GenerationMode.POSITIVE:
        case.body = only_integers(case.body)
        if isinstance(case.body, dict) and "items" in case.body:
            case.body = make_valid(case.body)
        if isinstance(case.body, dict) and case.operation.definition.raw.get("operationId") == "putOverride":
            case.body = {**case.body, "item": PER_KEY["name"]}
    return case


def only_integers(value):
    """JSON Schema accepts 3.0 as an integer; the API does not, because counts never pass through a float. Numbers in
    place of words may have any length."""
    if isinstance(value, dict):
        return {name: only_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [only_integers(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return 7 if isinstance(value, int) and abs(value) >= 1 << 64 else value


def make_valid(limit):
    limit = dict(limit)
    # Random zone names and unordered instants would be invalid.
    limit.pop("starts_at", None)
    if limit.get("time_zone") is not None:
        limit["time_zone"] = "Europe/Berlin"
    # Items with equal policy and window would have equal names; exact windows have an upper bound.
    items = [{**item, "name": f"item-{number}", "limit": min(item["limit"], 1000)} for number, item in enumerate(limit["items"])]
    for item in items:
        if item.get("window") is not None:
            item["window"] = "90s"
        if item.get("ttl") is not None:
            item["ttl"] = "90s"
    limit["items"] = items
    if limit.get("overrides"):
        limit["items"] = [*items, PER_KEY]
        limit["overrides"] = [{**each, "item": "own", "key": f"{number}"} for number, each in enumerate(limit["overrides"])]
    return limit
