//! Caller may do what.

use tidegate_server::tokens::{Caller, Role};

use crate::api::stage::{Stage, holder};

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

fn stage() -> Stage {
    Stage::with(&[r#"{"id": "shop/a", "items": [{"policy": "total", "limit": 9, "per": "key"}]}"#])
}

#[test]
fn strangers_see_only_how_the_server_is() {
    let stage = stage();
    for (line, body, _) in CALLS {
        let told = stage.ask_as(&Caller::Anonymous, line, &[], body);
        assert_eq!(told.header("www-authenticate"), Some("Bearer"), "{line}");
        told.problem(401, "unauthorized");
    }
    for path in ["/", "/healthz", "/readyz", "/openapi.json"] {
        stage.ask_as(&Caller::Anonymous, &format!("GET {path}"), &[], "").is(200);
    }
}

#[test]
fn every_role_does_what_it_may_and_no_more() {
    for role in Role::ALL {
        let stage = stage();
        for (line, body, needed) in CALLS {
            let told = stage.ask_as(&holder(role, ""), line, &[], body);
            if role >= needed {
                assert!(told.response.status().is_success(), "{role:?} {line}: {}", told.text());
            } else {
                let detail = told.problem(403, "forbidden");
                assert!(detail.contains(needed.word()) && detail.contains(role.word()), "{detail}");
            }
        }
    }
}

#[test]
fn a_token_is_for_the_limits_of_its_prefix() {
    let stage = stage();
    for (line, body, _) in CALLS {
        let told = stage.ask_as(&holder(Role::Admin, "bank/"), line, &[], body);
        match line {
            "GET /v1/limits" | "HEAD /v1/limits" => {
                told.is(200).says(r#"{"limits": [], "next": null}"#);
            }
            "GET /metrics" => {
                assert!(!told.is(200).text().contains("shop/a"));
            }
            // A lease's id says nothing about its limits.
            "POST /v1/release" => {
                told.is(200);
            }
            _ => assert!(told.problem(403, "forbidden").contains("bank/")),
        }
    }
    for (line, body, _) in CALLS {
        let told = stage.ask_as(&holder(Role::Admin, "shop/"), line, &[], body);
        assert!(told.response.status().is_success(), "{line}: {}", told.text());
    }
}

#[test]
fn of_a_set_every_limit_must_be_covered() {
    let stage = stage();
    stage.ask("POST /v1/limits", r#"{"id": "bank/a", "items": [{"policy": "total", "limit": 9}]}"#).is(201);
    let set = r#"{"asks": [{"limit_id": "shop/a", "limit_key": "k"}, {"limit_id": "bank/a"}]}"#;
    stage.ask_as(&holder(Role::Decide, "shop/"), "POST /v1/acquire", &[], set).problem(403, "forbidden");
    let hidden = r#"{"limit_id": "bank/unknown"}"#;
    let told = stage.ask_as(&holder(Role::Decide, "shop/"), "POST /v1/acquire", &[], hidden);
    told.problem(403, "forbidden");
    assert_eq!(stage.get("/v1/limits/shop%2Fa/usage?limit_key=k").at("/count"), serde_json::json!(0));
}
