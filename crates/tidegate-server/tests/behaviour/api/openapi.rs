//! `openapi.json` and the API agree in both directions.

use std::sync::LazyLock;

use bytes::Bytes;
use http::Response;
use serde_json::Value;
use tidegate_server::http::OPENAPI;
use tidegate_server::http::problem::ProblemCode;

use crate::api::fixture::ApiFixture;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(OPENAPI).expect("it is JSON"));

const METHODS: [&str; 4] = ["get", "put", "post", "delete"];

/// Checks that the description contains this status for the method and path. Unknown paths
/// must be answered with 404, unknown methods with 405.
#[track_caller]
pub(crate) fn knows(line: &str, response: &Response<Bytes>) {
    let (method, path) = line.split_once(' ').expect("METHOD PATH");
    let path = path.split('?').next().expect("a path");
    let status = response.status().as_u16();
    let Some((template, operations)) = operations(path) else {
        assert!(matches!(status, 404), "{line}: {status}, and the path is not in the document");
        return;
    };
    let method = if template.starts_with("/v1/gate") || method == "HEAD" { "GET" } else { method };
    let Some(operation) = operations.get(method.to_lowercase()) else {
        assert_eq!(status, 405, "{line}: the method is not in the document");
        return;
    };
    assert!(
        operation["responses"].get(status.to_string()).is_some(),
        "{line}: {status} is not in the document: {}",
        String::from_utf8_lossy(response.body())
    );
}

/// The templates of all paths.
pub(crate) fn templates() -> Vec<&'static str> {
    DOCUMENT["paths"].as_object().expect("paths").keys().map(String::as_str).collect()
}

/// The template of a path, and its operations.
fn operations(path: &str) -> Option<(&'static str, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    let fits = |template: &str| {
        let (wanted, found): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
        let part =
            |(wanted, found): (&&str, &&str)| wanted.starts_with('{') && !found.is_empty() || wanted == found;
        wanted.len() == found.len() && wanted.iter().zip(&found).all(part)
    };
    paths
        .iter()
        .find(|(template, _)| fits(template))
        .map(|(template, operations)| (template.as_str(), operations))
}

/// Resolves a `$ref`, or returns the value itself.
fn resolved(value: &Value) -> &Value {
    let Some(reference) = value["$ref"].as_str() else { return value };
    let place = reference.strip_prefix('#').expect("references stay in the document");
    DOCUMENT.pointer(place).unwrap_or_else(|| panic!("{reference} leads nowhere"))
}

#[test]
fn every_documented_path_is_routed() {
    let fixture = ApiFixture::empty();
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 21);
    for (template, operations) in paths {
        let path = template.replace("{id}", "no%2Fsuch").replace("{key}", "u");
        for method in METHODS {
            let response = fixture.ask(&format!("{} {path}", method.to_uppercase()), "");
            let is_missing = response.response.status() == 404 && response.at("/code") == "not_found";
            let is_known = operations.get(method).is_some() || template.starts_with("/v1/gate");
            if is_known {
                assert_ne!(response.response.status(), 405, "{method} {template}");
                assert!(!is_missing, "{method} {template}");
            } else {
                response.problem(405, "method_not_allowed");
            }
        }
    }
}

#[test]
fn every_problem_code_is_documented() {
    let documented = &DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
    let documented: Vec<_> =
        documented.as_array().expect("a list").iter().map(|word| word.as_str().expect("a word")).collect();
    let known: Vec<_> = ProblemCode::ALL.iter().map(|code| code.word()).collect();
    assert_eq!(documented, known);
    for code in ProblemCode::ALL.iter().filter(|code| **code != ProblemCode::NotFound) {
        let word = format!("`{}`", code.word());
        let status = code.status().as_u16().to_string();
        let response = DOCUMENT["paths"].as_object().expect("paths").values().any(|operations| {
            METHODS.iter().any(|method| {
                let about = &resolved(&operations[method]["responses"][&status])["description"];
                about.as_str().is_some_and(|about| about.contains(&word))
            })
        });
        assert!(response, "no path says {word} with {status}");
    }
}

#[test]
fn all_schemas_exist_and_are_used() {
    for kind in ["schemas", "responses", "parameters", "headers"] {
        let there = DOCUMENT["components"][kind].as_object().expect("a list");
        let named: Vec<_> = OPENAPI
            .split(&format!("#/components/{kind}/"))
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        for name in &named {
            assert!(there.contains_key(*name), "{kind}: {name} is not there");
        }
        for name in there.keys() {
            assert!(named.contains(&name.as_str()), "{kind}: {name} is not used");
        }
    }
}

#[test]
fn limit_schema_matches_settings_schema() {
    let file = tidegate_server::settings::schema();
    let documented = &DOCUMENT["components"]["schemas"];
    let fields = |value: &Value| {
        let mut names: Vec<_> = value["properties"].as_object().expect("fields").keys().cloned().collect();
        names.sort();
        names
    };
    for (here, there) in [("Limit", "limit"), ("Item", "item"), ("Override", "override")] {
        assert_eq!(fields(&documented[here]), fields(&file["$defs"][there]));
    }
    let words = |value: &Value| {
        let words = value["enum"].as_array().expect("words").iter();
        words.filter(|word| !word.is_null()).cloned().collect::<Vec<_>>()
    };
    for field in ["week_start", "mode", "on_outage", "durability", "fleet"] {
        assert_eq!(
            words(&documented["Limit"]["properties"][field]),
            words(&file["$defs"]["limit"]["properties"][field]),
            "{field}"
        );
    }
}

/// Limits are parsed by the settings parser, so both schemas must agree.
#[test]
fn limits_of_settings_files_are_accepted() {
    let file = tidegate_server::settings::schema();
    for (here, there) in [("LimitSpec", "limit"), ("ItemSpec", "item"), ("OverrideSpec", "override")] {
        let text = file["$defs"][there].to_string();
        let text = text.replace("#/$defs/item", "#/components/schemas/ItemSpec");
        let text = text.replace("#/$defs/override", "#/components/schemas/OverrideSpec");
        let mut written: Value = serde_json::from_str(&text).expect("it is JSON");
        let mut put = DOCUMENT["components"]["schemas"][here].clone();
        if here == "LimitSpec" {
            // The id may be omitted where the path contains it.
            written["required"] = serde_json::json!(["items"]);
            let put = put.as_object_mut().expect("a schema");
            put.remove("description").expect("words for people");
            put.remove("examples").expect("an example");
        }
        assert_eq!(put, written, "{here}");
    }
}

#[test]
fn openapi_json_is_served() {
    let response = ApiFixture::empty().get("/openapi.json").is(200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.text(), OPENAPI);
}
