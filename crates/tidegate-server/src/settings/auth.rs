//! The section `auth`: valid tokens and their permissions.
//!
//! The file contains only the SHA-256 of a token, so reading the file does not reveal it.

use serde_json::json;
use std::collections::HashMap;
use tidegate_config::schema::CustomType;
use tidegate_config::text::quoted;
use tidegate_config::{DiagnosticSink, FieldPath, Mapping, SourceSpan};

/// 64 hexadecimal digits.
pub(super) static SHA256: CustomType = CustomType {
    check: check_sha256,
    allowed: "64 hexadecimal digits, the SHA-256 of a token",
    json_schema: || json!({"type": ["string", "number"], "pattern": "^[0-9A-Fa-f]{64}$"}),
};

fn check_sha256(text: &str, _plain: bool) -> Result<(), String> {
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err(format!("must be 64 hexadecimal digits, the SHA-256 of a token, found {}", quoted(text)))
}

/// The role of a token; each role includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Reads limits and counts, and peeks.
    Read,
    /// Also acquires and releases.
    Decide,
    /// Also changes limits and resets counts.
    Admin,
}

impl Role {
    /// All roles in ascending order.
    pub const ALL: [Role; 3] = [Role::Read, Role::Decide, Role::Admin];

    /// The word used in settings files.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Decide => "decide",
            Role::Admin => "admin",
        }
    }
}

/// One of `auth.tokens`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSpec {
    /// A name for operators.
    pub name: String,
    /// The SHA-256 of the token: 64 hexadecimal digits.
    pub sha256: String,
    /// The role.
    pub role: Role,
    /// Prefix of the ids of permitted limits; empty for all.
    pub prefix: String,
}

/// Reads the tokens and reports duplicates. Unreadable fields were reported already.
pub(super) fn read_tokens(sink: &mut DiagnosticSink<'_>, mut auth: Mapping) -> Vec<TokenSpec> {
    let auth_path = FieldPath::Field(&FieldPath::Top, "auth");
    let path = FieldPath::Field(&auth_path, "tokens");
    let mut seen: HashMap<String, SourceSpan> = HashMap::new();
    let mut tokens = Vec::new();
    for (index, mut record) in auth.take_list("tokens").unwrap_or_default().into_iter().enumerate() {
        if let Some((hash, place)) = record.text_and_span("sha256") {
            let hash = hash.to_ascii_lowercase();
            if let Some(first) = seen.get(&hash) {
                let (line, _) = sink.source().line_and_column(*first);
                let message = format!("is the token on line {line} again; write every token once");
                sink.error(place, FieldPath::Field(&FieldPath::Element(&path, index), "sha256"), message);
            } else {
                seen.insert(hash, place);
            }
        }
        tokens.extend(token(&mut record));
    }
    tokens
}

fn token(record: &mut Mapping) -> Option<TokenSpec> {
    Some(TokenSpec {
        name: record.take_text("name")?,
        sha256: record.take_text("sha256")?,
        role: record.take_choice("role", &Role::ALL, Role::word)?,
        prefix: record.take_text("prefix").unwrap_or_default(),
    })
}
