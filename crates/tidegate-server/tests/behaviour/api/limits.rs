//! Limits: create, list, read, replace, delete, and overrides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tidegate::catalog::{Edit, ExpectedVersion};
use tidegate::model::{ItemSpec, LimitSpec, Policy};
use tidegate_server::resp::RespService;
use tidegate_server::resp::described_buckets::BucketDescription;

use crate::api::fixture::{ApiFixture, ApiResponse, holder};
use tidegate_server::tokens::{Caller, Permissions, Role};

const SALE: &str = r#"{"id": "shop/sale", "description": "flash sale", "items": [
	{"policy": "total", "limit": 10000},
	{"policy": "day", "limit": 1, "per": "key"},
	{"policy": "sliding", "limit": 5, "per": "key", "window": "15s"},
	{"policy": "bucket", "limit": 100, "window": "500ms", "burst": 200},
	{"policy": "concurrency", "limit": -1, "ttl": "60s", "charge": "count", "name": "slots"}],
	"overrides": [{"key": "vip-7", "item": "key/day", "limit": 20, "until": "2026-02-01T00:00:00+08:00"}]}"#;

fn with_if_match(fixture: &ApiFixture, line: &str, etag: &str, body: &str) -> ApiResponse {
    fixture.ask_as(&Caller::Authenticated(Permissions::all()), line, &[("if-match", etag)], body)
}

#[test]
fn created_limit_is_returned_as_written() {
    let fixture = ApiFixture::empty();
    let shown = r#"{"id": "shop/sale", "description": "flash sale", "time_zone": "UTC", "week_start": "monday",
        "mode": "enforce", "on_outage": "deny", "durability": "ceiling", "fleet": "exact", "items": [
        {"policy": "total", "limit": 10000, "per": "all"},
        {"policy": "day", "limit": 1, "per": "key"},
        {"policy": "sliding", "limit": 5, "per": "key", "window": "15s", "precision": "exact"},
        {"policy": "bucket", "limit": 100, "per": "all", "window": "500ms", "burst": 200},
        {"policy": "concurrency", "limit": -1, "per": "all", "ttl": "60s", "charge": "count", "name": "slots"}],
        "overrides": [{"key": "vip-7", "item": "key/day", "limit": 20, "until": "2026-01-31T16:00:00Z"}]}"#;
    let added = fixture.ask("POST /v1/limits", SALE).is(201).says(shown);
    assert_eq!(added.header("location"), Some("/v1/limits/shop%2Fsale"));
    assert_eq!(added.header("content-type"), Some("application/json"));
    let got = fixture.get("/v1/limits/shop%2Fsale").is(200).says(shown);
    assert_eq!(got.header("etag"), added.header("etag"));
    fixture.ask("POST /v1/limits", SALE).problem(409, "limit_exists");
    fixture.get("/v1/limits/shop%2Fother").problem(404, "unknown_limit");
    let put = fixture.ask("PUT /v1/limits/shop%2Fsale", &got.text()).is(200).says(shown);
    assert_eq!(put.header("etag"), got.header("etag"), "nothing has changed");
}

#[test]
fn all_fields_of_a_limit_round_trip() {
    let limit = r#"{"id": "l", "time_zone": "Asia/Shanghai", "week_start": "sunday", "mode": "shadow", "on_outage": "admit",
        "durability": "sync", "fleet": "sliced", "max_keys": 10, "starts_at": "2026-01-01T00:00:00Z", "ends_at": "2026-12-31T00:00:00.5Z",
        "items": [{"policy": "sliding", "limit": 2, "per": "all", "window": "60s", "precision": "bucketed"}], "overrides": []}"#;
    let fixture = ApiFixture::with(&[limit]);
    fixture.get("/v1/limits/l").is(200).says(limit);
}

#[test]
fn json_is_not_read_as_yaml() {
    let text = r#"\ud83d\ude00 \/ \"x\": # - \t\u00e9\u0041 \b\f\n\r \\ \u2028"#;
    let items = r#"[{"policy":"total","limit":-1}]"#;
    for limit in [
        format!(r#"{{"id":"l","description":"{text}","items":{items}}}"#),
        format!("\r\n{{\"id\":\"l\",\r\n\t\"description\":\"{text}\",\r\n\t\"items\":\t{items}\t}}\n\n"),
        format!("{{\"id\"\n:\"l\"\n,\"description\"\t:\n\"{text}\"\n,\n\"items\"\n\n:\n{items}\n}}"),
        format!("{{\"\\u0069d\":\"l\",\n\"description\":\"{text}\",\n\"items\":\n{items}\n}}"),
    ] {
        let fixture = ApiFixture::with(&[&limit]);
        let read = fixture.get("/v1/limits/l").at("/description");
        assert_eq!(read, json!("😀 / \"x\": # - \té\u{41} \u{8}\u{c}\n\r \\ \u{2028}"), "{limit}");
    }
    let fixture = ApiFixture::empty();
    for yaml in
        ["id: l", "{id: m, items: [{policy: total, limit: 1}]}", "{\"id\": \"m\",}", "", "[]", "7", "{} {}"]
    {
        fixture.ask("POST /v1/limits", yaml).problem(400, "bad_request");
    }
}

#[test]
fn all_errors_of_a_limit_are_reported() {
    let fixture = ApiFixture::empty();
    let wrong = r#"{"id": "no spaces", "colour": "red", "time_zone": "Mars/Olympus", "items": [
        {"policy": "total", "limit": -2},
        {"policy": "bucket", "limit": 1.5, "window": "1s", "burst": 0},
        {"policy": "sliding", "limit": 1000001, "window": "15s"},
        {"policy": "dya", "limit": 99999999999999999999}],
        "overrides": [{"key": "k", "item": "key/day"}]}"#;
    let fields = [
        "id",
        "colour",
        "time_zone",
        "items[0].limit",
        "items[1].limit",
        "items[1].burst",
        "items[2].limit",
        "items[3].policy",
        "items[3].limit",
        "overrides[0].limit",
    ];
    let messages = fixture.ask("POST /v1/limits", wrong).fields(422, "invalid_limit", &fields);
    assert!(messages[7].ends_with("did you mean 'day'?") || messages[7].contains("day"), "{}", messages[7]);
    fixture.get("/v1/limits").is(200).says(r#"{"limits": [], "next": null}"#);

    let messages = fixture.ask("POST /v1/limits", "{}").fields(422, "invalid_limit", &["id", "items"]);
    assert!(messages[0].starts_with("is missing"), "{}", messages[0]);
    let doubled =
        r#"{"id": "l", "items": [{"policy": "total", "limit": 1}, {"policy": "total", "limit": 2}]}"#;
    fixture.ask("POST /v1/limits", doubled).fields(422, "invalid_limit", &["items[1].name"]);
}

#[test]
fn limit_with_only_unknown_fields_is_a_bad_request() {
    let fixture = ApiFixture::empty();
    let limit = r#"{"id": "l", "colour": "red", "items": [{"policy": "total", "limit": 1, "size": 2}]}"#;
    fixture.ask("POST /v1/limits", limit).fields(400, "bad_request", &["colour", "items[0].size"]);
    fixture.get("/v1/limits/l").problem(404, "unknown_limit");
}

#[test]
fn limit_id_in_body_must_match_path() {
    let fixture = ApiFixture::with(&[r#"{"id": "l", "items": [{"policy": "total", "limit": 1}]}"#]);
    let nameless = r#"{"items": [{"policy": "total", "limit": 2}]}"#;
    assert_eq!(fixture.ask("PUT /v1/limits/l", nameless).is(200).at("/items/0/limit"), json!(2));
    let other = r#"{"id": "m", "items": [{"policy": "total", "limit": -7}]}"#;
    fixture.ask("PUT /v1/limits/l", other).fields(422, "invalid_limit", &["items[0].limit", "id"]);
    for id in [r#""m""#, "7"] {
        let other = format!(r#"{{"id": {id}, "items": [{{"policy": "total", "limit": 1}}]}}"#);
        fixture.ask("PUT /v1/limits/l", &other).fields(422, "invalid_limit", &["id"]);
    }
    fixture.ask("PUT /v1/limits/l", "{}").fields(422, "invalid_limit", &["items"]);
    fixture.ask("PUT /v1/limits/m", nameless).problem(404, "unknown_limit");
}

#[test]
fn stale_if_match_changes_nothing() {
    let limit = r#"{"id": "l", "items": [{"policy": "total", "limit": 1}]}"#;
    let fixture = ApiFixture::with(&[limit]);
    let read = fixture.get("/v1/limits/l").header("etag").expect("an etag").to_owned();
    let second = with_if_match(&fixture, "PUT /v1/limits/l", &read, &limit.replace('1', "2")).is(200);
    let second = second.header("etag").expect("an etag").to_owned();
    for line in ["PUT /v1/limits/l", "DELETE /v1/limits/l", "PUT /v1/limits/l/overrides/k"] {
        with_if_match(&fixture, line, &read, limit).problem(412, "stale_etag");
    }
    assert_eq!(fixture.get("/v1/limits/l").at("/items/0/limit"), json!(2));
    with_if_match(&fixture, "PUT /v1/limits/l", "*", limit).is(200);
    with_if_match(&fixture, "PUT /v1/limits/l", &second, limit).problem(412, "stale_etag");

    // The same version number of a new limit has another ETag.
    fixture.ask("DELETE /v1/limits/l", "").is(204);
    fixture.ask("POST /v1/limits", &limit.replace('1', "3")).is(201);
    with_if_match(&fixture, "PUT /v1/limits/l", &read, limit).problem(412, "stale_etag");
    let third = fixture.get("/v1/limits/l").header("etag").expect("an etag").to_owned();
    with_if_match(&fixture, "DELETE /v1/limits/l", &format!("\"x\", {third}"), "").is(204);
    fixture.ask("DELETE /v1/limits/l", "").problem(404, "unknown_limit");
}

#[test]
fn limits_are_listed_in_pages() {
    let fixture = ApiFixture::empty();
    for id in ["b/1", "a", "b/3", "c", "b/2"] {
        let limit = format!(r#"{{"id": "{id}", "items": [{{"policy": "total", "limit": 1}}]}}"#);
        fixture.ask("POST /v1/limits", &limit).is(201);
    }
    let ids = |response: &ApiResponse| {
        let json = response.json();
        let ids = json["limits"].as_array().expect("a list").iter().map(|limit| limit["id"].clone());
        (ids.collect::<serde_json::Value>(), json["next"].clone())
    };
    for (query, page, next) in [
        ("", json!(["a", "b/1", "b/2", "b/3", "c"]), json!(null)),
        ("?limit=2", json!(["a", "b/1"]), json!("b/1")),
        ("?limit=2&after=b%2F1", json!(["b/2", "b/3"]), json!("b/3")),
        ("?limit=2&after=b/3", json!(["c"]), json!(null)),
        ("?limit=5", json!(["a", "b/1", "b/2", "b/3", "c"]), json!(null)),
        ("?prefix=b/&limit=2", json!(["b/1", "b/2"]), json!("b/2")),
        ("?prefix=b/&after=b/2", json!(["b/3"]), json!(null)),
        ("?after=zzz", json!([]), json!(null)),
    ] {
        let response = fixture.get(&format!("/v1/limits{query}")).is(200);
        assert_eq!(ids(&response), (page, next), "{query}");
        assert!(response.header("etag").is_some());
    }
    for query in ["?limit=0", "?limit=1001", "?limit=-1", "?limit=x", "?prefx=b", "?limit=1&limit=2"] {
        fixture.get(&format!("/v1/limits{query}")).problem(400, "bad_request");
    }
    let response = fixture.ask_as(&holder(Role::Read, "b/"), "GET /v1/limits?limit=2", &[], "");
    assert_eq!(ids(&response), (json!(["b/1", "b/2"]), json!("b/2")));
}

#[test]
fn file_limits_are_read_only() {
    let mut fixture = ApiFixture::with(&[
        r#"{"id": "l", "items": [{"policy": "total", "limit": 1, "per": "key"}]}"#,
        r#"{"id": "m", "items": [{"policy": "total", "limit": 1}]}"#,
    ]);
    fixture.api = fixture.api.from_file(|id| id == "l");
    let body = r#"{"items": [{"policy": "total", "limit": 2}]}"#;
    fixture.ask("PUT /v1/limits/l", body).problem(409, "managed_by_file");
    fixture.ask("DELETE /v1/limits/l", "").problem(409, "managed_by_file");
    fixture
        .ask("PUT /v1/limits/l/overrides/k", r#"{"item": "key/total", "limit": 2}"#)
        .problem(409, "managed_by_file");
    fixture.ask("DELETE /v1/limits/l/overrides/k", "").problem(409, "managed_by_file");
    fixture.ask("POST /v1/limits/l/reset", "").is(204);
    fixture.get("/v1/limits/l").is(200);
    fixture.ask("PUT /v1/limits/m", body).is(200);
}

/// A file takes the limit over between the permission check and the replacement.
#[test]
fn limit_taken_over_by_a_file_meanwhile_is_not_replaced() {
    let mut fixture = ApiFixture::with(&[r#"{"id": "l", "items": [{"policy": "total", "limit": 1}]}"#]);
    let store = Arc::clone(&fixture.store);
    let asked = AtomicUsize::new(0);
    fixture.api = fixture.api.from_file(move |id| {
        if asked.fetch_add(1, Ordering::Relaxed) > 0 {
            return true;
        }
        let of_file = LimitSpec::named(id).with(ItemSpec::of(Policy::Total, 7));
        store.apply(vec![Edit::Put(of_file, ExpectedVersion::Anything)]).expect("valid input");
        false
    });
    fixture
        .ask("PUT /v1/limits/l", r#"{"items": [{"policy": "total", "limit": 2}]}"#)
        .problem(409, "managed_by_file");
    assert_eq!(fixture.get("/v1/limits/l").at("/items/0/limit"), json!(7));
}

#[test]
fn override_is_put_and_removed() {
    let fixture = ApiFixture::with(&[
        r#"{"id": "l", "items": [{"policy": "day", "limit": 1, "per": "key"}, {"policy": "total", "limit": 2, "per": "key"}]}"#,
    ]);
    let ask = r#"{"limit_id": "l", "limit_key": "a/b", "count": 3}"#;
    assert_eq!(fixture.ask("POST /v1/peek", ask).at("/wait"), json!("never"));

    let day = r#"{"item": "key/day", "limit": 20, "until": "2026-02-01T00:00:00Z"}"#;
    let put = fixture.ask("PUT /v1/limits/l/overrides/a%2Fb", day).is(200);
    assert_eq!(put.header("etag"), fixture.get("/v1/limits/l").header("etag"));
    put.says(r#"{"key": "a/b", "item": "key/day", "limit": 20, "until": "2026-02-01T00:00:00Z"}"#);
    let total = r#"{"item": "key/total", "limit": -1, "until": null}"#;
    fixture
        .ask("PUT /v1/limits/l/overrides/a%2Fb", total)
        .is(200)
        .says(r#"{"key": "a/b", "item": "key/total", "limit": -1}"#);
    assert!(fixture.ask("POST /v1/acquire", ask).allowed());

    let less = r#"{"item": "key/day", "limit": 4}"#;
    fixture.ask("PUT /v1/limits/l/overrides/a%2Fb", less).is(200);
    assert_eq!(
        fixture.get("/v1/limits/l").at("/overrides").as_array().map(Vec::len),
        Some(2),
        "one for each item"
    );
    assert!(!fixture.ask("POST /v1/acquire", ask).allowed());

    fixture.ask("DELETE /v1/limits/l/overrides/a%2Fb?item=key/week", "").problem(404, "not_found");
    fixture.ask("DELETE /v1/limits/l/overrides/a%2Fb?item=key/day", "").is(204);
    fixture.ask("DELETE /v1/limits/l/overrides/a%2Fb", r#"{"item": "key/total"}"#).is(204);
    fixture.ask("DELETE /v1/limits/l/overrides/a%2Fb", "").problem(404, "not_found");
    fixture.ask("PUT /v1/limits/l/overrides/u", less).is(200);
    fixture.ask("PUT /v1/limits/l/overrides/u", total).is(200);
    fixture.ask("DELETE /v1/limits/l/overrides/u", "").is(204);
    assert_eq!(fixture.get("/v1/limits/l").at("/overrides"), json!([]));
    fixture.ask("DELETE /v1/limits/none/overrides/u", "").problem(404, "unknown_limit");
    fixture.ask("PUT /v1/limits/none/overrides/u", less).problem(404, "unknown_limit");
}

#[test]
fn all_errors_of_an_override_are_reported() {
    let fixture =
        ApiFixture::with(&[r#"{"id": "l", "items": [{"policy": "day", "limit": 1, "per": "key"}]}"#]);
    let put = |body: &str| fixture.ask("PUT /v1/limits/l/overrides/k", body);
    put(r#"{"item": "key/week", "limit": -2, "until": "soon"}"#).fields(
        422,
        "invalid_limit",
        &["item", "limit", "until"],
    );
    put("{}").fields(422, "invalid_limit", &["item", "limit"]);
    put(r#"{"item": "key/day", "limit": 1.5}"#).fields(422, "invalid_limit", &["limit"]);
    assert!(
        put(r#"{"item": "key/day", "limit": 1, "key": "k"}"#)
            .problem(400, "bad_request")
            .contains("item, limit and until")
    );
    put("[]").problem(400, "bad_request");
    assert_eq!(fixture.get("/v1/limits/l").at("/overrides"), json!([]));
}

/// Limits of `CL.THROTTLE` can be read and deleted, but not written or charged by other requests.
#[test]
fn described_buckets_cannot_be_written_or_charged_over_http() {
    let fixture = ApiFixture::with(&[r#"{"id": "l", "items": [{"policy": "total", "limit": 1}]}"#]);
    let service = RespService::new(
        Arc::clone(&fixture.store),
        Arc::new(tidegate_server::tokens::TokenTable::allow_all()),
    );
    let bucket = BucketDescription { capacity: 16, count: 30, period: 60 };
    let id = service.described_buckets().get_or_create(bucket).expect("it can be").id().to_owned();
    let path = format!("/v1/limits/{}", id.replace('/', "%2F"));

    for id in ["cl.throttle", "cl.throttle/1/1/1", "cl.throttle/mine"] {
        let body = format!(r#"{{"id": "{id}", "items": [{{"policy": "total", "limit": 1}}]}}"#);
        let response = fixture.ask("POST /v1/limits", &body).fields(422, "invalid_limit", &["id"]);
        assert!(response[0].contains("CL.THROTTLE"), "{response:?}");
    }
    fixture
        .ask("POST /v1/limits", r#"{"id": "cl.throttles", "items": [{"policy": "total", "limit": 1}]}"#)
        .is(201);
    let items = r#"{"items": [{"policy": "total", "limit": 1}]}"#;
    fixture.ask(&format!("PUT {path}"), items).fields(422, "invalid_limit", &["id"]);
    fixture.ask("PUT /v1/limits/cl.throttle%2F1%2F1%2F1", items).problem(404, "unknown_limit");
    let more = r#"{"item": "key/bucket-60s", "limit": 100}"#;
    fixture.ask(&format!("PUT {path}/overrides/ada"), more).fields(422, "invalid_limit", &["id"]);
    fixture.ask(&format!("DELETE {path}/overrides/ada"), "").problem(404, "not_found");

    let ask = format!(r#"{{"limit_id": "{id}", "limit_key": "ada"}}"#);
    assert!(fixture.ask("POST /v1/acquire", &ask).problem(400, "bad_request").contains("CL.THROTTLE"));
    let set = format!(r#"{{"asks": [{{"limit_id": "l", "limit_key": "ada"}}, {ask}]}}"#);
    fixture.ask("POST /v1/acquire", &set).problem(400, "bad_request");
    fixture.get(&format!("/v1/gate/{}/ada", id.replace('/', "%2F"))).problem(400, "bad_request");
    assert!(fixture.ask("POST /v1/peek", &ask).allowed(), "to look does no harm");
    fixture.get(&format!("{path}/usage?limit_key=ada")).is(200);
    fixture.get(&path).is(200);

    let ids = |query: &str| {
        let json = fixture.get(&format!("/v1/limits{query}")).is(200).json();
        let ids = json["limits"].as_array().expect("a list").iter().map(|limit| limit["id"].clone());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(ids(""), ["cl.throttles", "l"], "described buckets are not listed");
    assert_eq!(ids("?prefix=cl."), ["cl.throttles"]);
    assert_eq!(ids("?prefix=cl.throttle/"), [id.as_str()], "unless they are asked for");

    fixture.ask(&format!("POST {path}/reset"), r#"{"limit_key": "ada"}"#).is(204);
    fixture.ask(&format!("DELETE {path}"), "").is(204);
    fixture.get(&path).problem(404, "unknown_limit");
}
