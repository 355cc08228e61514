//! The published description is true: the door knows every path of it, and says nothing that is not in it.

use std::sync::LazyLock;

use bytes::Bytes;
use http::Response;
use serde_json::Value;
use tidegate_server::http::OPENAPI;
use tidegate_server::http::problem::ProblemCode;

use crate::api::stage::Stage;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(OPENAPI).expect("it is JSON"));

const METHODS: [&str; 4] = ["get", "put", "post", "delete"];

/// Checks that the document has this status for the method and path of this request. Paths that it does not have
/// must be answered with 404, and methods with 405.
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

/// The template of a path, and what can be done there.
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

/// What a reference leads to, or the value itself.
fn resolved(value: &Value) -> &Value {
    let Some(reference) = value["$ref"].as_str() else { return value };
    let place = reference.strip_prefix('#').expect("references stay in the document");
    DOCUMENT.pointer(place).unwrap_or_else(|| panic!("{reference} leads nowhere"))
}

#[test]
fn the_door_knows_every_path_of_the_document() {
    let stage = Stage::empty();
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 21);
    for (template, operations) in paths {
        let path = template.replace("{id}", "no%2Fsuch").replace("{key}", "u");
        for method in METHODS {
            let told = stage.ask(&format!("{} {path}", method.to_uppercase()), "");
            let is_missing = told.response.status() == 404 && told.at("/code") == "not_found";
            let is_known = operations.get(method).is_some() || template.starts_with("/v1/gate");
            if is_known {
                assert_ne!(told.response.status(), 405, "{method} {template}");
                assert!(!is_missing, "{method} {template}");
            } else {
                told.problem(405, "method_not_allowed");
            }
        }
    }
}

#[test]
fn every_code_is_in_the_document() {
    let documented = &DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
    let documented: Vec<_> =
        documented.as_array().expect("a list").iter().map(|word| word.as_str().expect("a word")).collect();
    let known: Vec<_> = ProblemCode::ALL.iter().map(|code| code.word()).collect();
    assert_eq!(documented, known);
    for code in ProblemCode::ALL.iter().filter(|code| **code != ProblemCode::NotFound) {
        let word = format!("`{}`", code.word());
        let status = code.status().as_u16().to_string();
        let told = DOCUMENT["paths"].as_object().expect("paths").values().any(|operations| {
            METHODS.iter().any(|method| {
                let about = &resolved(&operations[method]["responses"][&status])["description"];
                about.as_str().is_some_and(|about| about.contains(&word))
            })
        });
        assert!(told, "no path says {word} with {status}");
    }
}

#[test]
fn everything_that_is_named_is_there_and_used() {
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
fn what_a_limit_may_have_is_what_a_file_may_have() {
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

/// What is put is read by the reader of files, so one description must be the other.
#[test]
fn a_limit_is_put_as_it_is_written_in_a_file() {
    let file = tidegate_server::settings::schema();
    for (here, there) in [("LimitSpec", "limit"), ("ItemSpec", "item"), ("OverrideSpec", "override")] {
        let text = file["$defs"][there].to_string();
        let text = text.replace("#/$defs/item", "#/components/schemas/ItemSpec");
        let text = text.replace("#/$defs/override", "#/components/schemas/OverrideSpec");
        let mut written: Value = serde_json::from_str(&text).expect("it is JSON");
        let mut put = DOCUMENT["components"]["schemas"][here].clone();
        if here == "LimitSpec" {
            // Where the path says the id, it may be left out.
            written["required"] = serde_json::json!(["items"]);
            let put = put.as_object_mut().expect("a schema");
            put.remove("description").expect("words for people");
            put.remove("examples").expect("an example");
        }
        assert_eq!(put, written, "{here}");
    }
}

#[test]
fn the_document_is_where_it_says() {
    let told = Stage::empty().get("/openapi.json").is(200);
    assert_eq!(told.header("content-type"), Some("application/json"));
    assert_eq!(told.text(), OPENAPI);
}
