//! Roles and prefixes of tokens.

use tidegate_server::tokens::{Caller, Role};

use crate::api::fixture::{ApiFixture, holder};

const CALLS: [(&str, &str, Role); 17] = [
    ("GET /metrics", "", Role::Read),
    ("POST /v1/peek", r#"{"limit_id": "shop/a", "limit_key": "k"}"#, Role::Read),
    ("GET /v1/limits", "", Role::Read),
    ("GET /v1/limits/shop%2Fa", "", Role::Read),
    ("HEAD /v1/limits", "", Role::Read),
    ("HEAD /v1/limits/shop%2Fa", "", Role::Read),
    ("GET /v1/limits/shop%2Fa/usage", "", Role::Read),
    ("POST /v1/acquire", r#"{"limit_id": "shop/a", "limit_key": "k"}"#, Role::Decide),
    ("GET /v1/gate/shop%2Fa/k", "", Role::Decide),
    ("GET /v1/gate?limit_id=shop/a&limit_key=k", "", Role::Decide),
    ("POST /v1/release", r#"{"lease_id": "x"}"#, Role::Decide),
    ("POST /v1/limits", r#"{"id": "shop/b", "items": [{"policy": "total", "limit": 1}]}"#, Role::Admin),
    ("PUT /v1/limits/shop%2Fa", r#"{"items": [{"policy": "total", "limit": 9, "per": "key"}]}"#, Role::Admin),
    ("POST /v1/limits/shop%2Fa/reset", "", Role::Admin),
    ("PUT /v1/limits/shop%2Fa/overrides/k", r#"{"item": "key/total", "limit": 1}"#, Role::Admin),
    ("DELETE /v1/limits/shop%2Fa/overrides/k", "", Role::Admin),
    ("DELETE /v1/limits/shop%2Fa", "", Role::Admin),
];

fn fixture() -> ApiFixture {
    ApiFixture::with(&[r#"{"id": "shop/a", "items": [{"policy": "total", "limit": 9, "per": "key"}]}"#])
}

#[test]
fn anonymous_callers_see_only_public_routes() {
    let fixture = fixture();
    for (line, body, _) in CALLS {
        let response = fixture.ask_as(&Caller::Anonymous, line, &[], body);
        assert_eq!(response.header("www-authenticate"), Some("Bearer"), "{line}");
        response.problem(401, "unauthorized");
    }
    for path in ["/", "/healthz", "/readyz", "/openapi.json"] {
        fixture.ask_as(&Caller::Anonymous, &format!("GET {path}"), &[], "").is(200);
    }
}

#[test]
fn roles_are_enforced_on_every_route() {
    for role in Role::ALL {
        let fixture = fixture();
        for (line, body, needed) in CALLS {
            let response = fixture.ask_as(&holder(role, ""), line, &[], body);
            if role >= needed {
                assert!(response.response.status().is_success(), "{role:?} {line}: {}", response.text());
            } else {
                let detail = response.problem(403, "forbidden");
                assert!(detail.contains(needed.word()) && detail.contains(role.word()), "{detail}");
            }
        }
    }
}

#[test]
fn token_prefix_restricts_limits() {
    let fixture = fixture();
    for (line, body, _) in CALLS {
        let response = fixture.ask_as(&holder(Role::Admin, "bank/"), line, &[], body);
        match line {
            "GET /v1/limits" | "HEAD /v1/limits" => {
                response.is(200).says(r#"{"limits": [], "next": null}"#);
            }
            "GET /metrics" => {
                assert!(!response.is(200).text().contains("shop/a"));
            }
            // A lease id does not name its limits.
            "POST /v1/release" => {
                response.is(200);
            }
            _ => assert!(response.problem(403, "forbidden").contains("bank/")),
        }
    }
    for (line, body, _) in CALLS {
        let response = fixture.ask_as(&holder(Role::Admin, "shop/"), line, &[], body);
        assert!(response.response.status().is_success(), "{line}: {}", response.text());
    }
}

#[test]
fn every_limit_of_a_set_must_be_covered() {
    let fixture = fixture();
    fixture.ask("POST /v1/limits", r#"{"id": "bank/a", "items": [{"policy": "total", "limit": 9}]}"#).is(201);
    let set = r#"{"asks": [{"limit_id": "shop/a", "limit_key": "k"}, {"limit_id": "bank/a"}]}"#;
    fixture.ask_as(&holder(Role::Decide, "shop/"), "POST /v1/acquire", &[], set).problem(403, "forbidden");
    let hidden = r#"{"limit_id": "bank/unknown"}"#;
    let response = fixture.ask_as(&holder(Role::Decide, "shop/"), "POST /v1/acquire", &[], hidden);
    response.problem(403, "forbidden");
    assert_eq!(fixture.get("/v1/limits/shop%2Fa/usage?limit_key=k").at("/count"), serde_json::json!(0));
}
