//! Error replies of a server, as message and exit code.
//!
//! The server's detail and all invalid fields are shown, followed by advice.

use serde::Deserialize;

use super::url::ServerUrl;
use crate::Failure;

/// An RFC 9457 problem.
#[derive(Debug, Deserialize)]
struct ProblemReply {
    code: String,
    detail: String,
    #[serde(default)]
    errors: Vec<ProblemField>,
}

#[derive(Debug, Deserialize)]
struct ProblemField {
    field: String,
    message: String,
}

/// The failure of a reply with this status. `token` says whether a token was sent.
pub(super) fn failure(
    url: &ServerUrl,
    status: u16,
    location: Option<&str>,
    text: &str,
    token: bool,
) -> Failure {
    match serde_json::from_str::<ProblemReply>(text) {
        Ok(problem) => problem.failure(token),
        Err(_) => Failure::Failed(foreign_reply(url, status, location)),
    }
}

/// The reply is not from a Tidegate server.
fn foreign_reply(url: &ServerUrl, status: u16, location: Option<&str>) -> String {
    let answered = format!("{url} answered with status {status}, but not as a Tidegate server");
    match location {
        Some(elsewhere) => {
            format!("{answered}; it points to {}, give that as --server", elsewhere.escape_debug())
        }
        None => format!("{answered}; is --server right?"),
    }
}

impl ProblemReply {
    fn failure(&self, token: bool) -> Failure {
        let mut message = if self.errors.is_empty() { self.detail.clone() } else { self.fields() };
        if let Some(advice) = self.advice(token) {
            message.push_str("; ");
            message.push_str(advice);
        }
        match &*self.code {
            "bad_request" | "invalid_limit" | "unknown_limit" | "not_found" | "request_id_reused"
            | "too_large" => Failure::BadInput(message),
            _ => Failure::Failed(message),
        }
    }

    /// One line per invalid field.
    fn fields(&self) -> String {
        let lines = self.errors.iter().map(|error| match &*error.field {
            "" => error.message.clone(),
            field => format!("{field}: {}", error.message),
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Advice that the server cannot give.
    fn advice(&self, token: bool) -> Option<&'static str> {
        Some(match &*self.code {
            "unauthorized" if token => {
                "the server does not know the token that was sent: its sha256 must be among auth.tokens in the \
                 server's settings file, 'tidegate token new' makes both"
            }
            "unauthorized" => "set TIDEGATE_TOKEN, or give --token-file",
            "forbidden" => "ask the operator of the server for a token with this permission",
            "unknown_limit" => "'tidegate limit list' shows which there are",
            "limit_exists" => "'tidegate limit set' replaces it",
            "stale_etag" => "'tidegate limit get' shows the limit as it is now",
            "request_id_reused" => "choose another --request-id, or repeat exactly what was asked",
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(code: &str, errors: &str, token: bool) -> Failure {
        let text = format!("{{\"code\":\"{code}\",\"detail\":\"so it is\",\"errors\":{errors},\"new\":1}}");
        let url = ServerUrl::parse("http://localhost:1").expect("a URL");
        failure(&url, 400, None, &text, token)
    }

    #[test]
    fn what_was_typed_is_to_blame_or_it_is_not() {
        for code in ["bad_request", "invalid_limit", "unknown_limit", "not_found", "too_large"] {
            assert!(matches!(message(code, "[]", false), Failure::BadInput(_)), "{code}");
        }
        for code in
            ["unauthorized", "forbidden", "limit_exists", "managed_by_file", "store_unavailable", "new"]
        {
            assert!(matches!(message(code, "[]", false), Failure::Failed(_)), "{code}");
        }
    }

    #[test]
    fn every_field_has_its_line() {
        let errors = r#"[{"field":"items[0].limit","message":"is missing"},{"field":"","message":"no"}]"#;
        assert_eq!(message("invalid_limit", errors, false).to_string(), "items[0].limit: is missing\nno");
    }

    #[test]
    fn a_token_is_missing_or_unknown() {
        assert!(message("unauthorized", "[]", false).to_string().contains("set TIDEGATE_TOKEN"));
        assert!(message("unauthorized", "[]", true).to_string().contains("does not know the token"));
    }

    #[test]
    fn strangers_are_known_by_their_words() {
        let url = ServerUrl::parse("http://localhost:1").expect("a URL");
        let message = failure(&url, 404, None, "<html>", false).to_string();
        assert!(message.contains("http://localhost:1 answered with status 404"), "{message}");
        let message = failure(&url, 301, Some("https://there/"), "", false).to_string();
        assert!(message.contains("points to https://there/"), "{message}");
    }
}
