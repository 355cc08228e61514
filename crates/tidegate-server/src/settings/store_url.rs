//! Store URLs: `memory:`, `disk:DIR`, `postgres://…`.

use std::path::PathBuf;

use serde_json::json;
use tidegate_config::schema::CustomType;
use tidegate_config::text::{did_you_mean, nearest, quoted, without_store_passwords};

/// The type of a store URL.
pub(super) static STORE_URL: CustomType = CustomType {
    check: |text, _plain| parse_store(text).map(drop),
    allowed: "a store such as memory:, disk:./tidegate-data or postgres://…",
    json_schema: || json!({"type": "string", "pattern": "^(memory:?|disk:.+|postgres(ql)?://.+)$"}),
};

/// The URL of a store.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum StoreUrl {
    /// In memory, lost with the process: `memory:`.
    Memory,
    /// In this directory: `disk:DIR`.
    Disk(PathBuf),
    /// In a PostgreSQL database that servers can share: `postgres://USER@HOST/DATABASE`. The URL may contain a password.
    Postgres(String),
}

/// Parses a store URL. The colon of `memory:` may be omitted, because YAML would need quotes.
///
/// ```
/// use tidegate_server::settings::{StoreUrl, parse_store};
///
/// assert_eq!(parse_store("memory"), Ok(StoreUrl::Memory));
/// assert_eq!(parse_store("disk:./data"), Ok(StoreUrl::Disk("./data".into())));
/// assert!(parse_store("disk:").unwrap_err().contains("disk:./tidegate-data"));
///
/// let shared = parse_store("postgres://app:secret@db/limits").unwrap();
/// assert_eq!(shared.to_string(), "postgres://app:***@db/limits", "a password is not shown");
/// ```
pub fn parse_store(text: &str) -> Result<StoreUrl, String> {
    match text.split_once(':') {
        Some(("memory", "")) => Ok(StoreUrl::Memory),
        None if text == "memory" => Ok(StoreUrl::Memory),
        Some(("disk", folder)) if is_postgres(folder) => {
            Err("names a database, not a directory; leave out the disk: before postgres:".to_owned())
        }
        Some(("disk", folder)) if !folder.is_empty() => Ok(StoreUrl::Disk(PathBuf::from(folder))),
        Some(("postgres" | "postgresql", rest)) if rest.len() > 2 && rest.starts_with("//") => {
            Ok(StoreUrl::Postgres(text.to_owned()))
        }
        Some(("postgres" | "postgresql", _)) => {
            Err("names no database; write postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned())
        }
        Some(("disk", _)) => Err("names no directory; write disk:./tidegate-data".to_owned()),
        _ if text == "disk" => Err("names no directory; write disk:./tidegate-data".to_owned()),
        other => {
            let kind = other.map_or(text, |(kind, _)| kind);
            let kind = kind.trim().to_ascii_lowercase();
            let meant = nearest(&kind, ["memory", "disk", "postgres"]);
            let advice =
                meant.map(|meant| format!("; {}", did_you_mean(&format!("{meant}:")))).unwrap_or_default();
            Err(format!(
                "must be memory:, disk:DIRECTORY or postgres://…, found {}{advice}",
                quoted(&without_store_passwords(text))
            ))
        }
    }
}

/// Whether a disk directory is a PostgreSQL URL by mistake.
fn is_postgres(folder: &str) -> bool {
    let kind = folder.split_once(':').map(|(kind, _)| kind.trim().to_ascii_lowercase());
    kind.is_some_and(|kind| matches!(&*kind, "postgres" | "postgresql"))
}

impl std::fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Disk(folder) => write!(f, "disk:{}", folder.display()),
            StoreUrl::Postgres(url) => f.write_str(&without_store_passwords(url)),
        }
    }
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}
