//! Names of stores: `memory:`, `disk:DIR`, `postgres://…`.

use std::path::PathBuf;

use super::{did_you_mean, nearest, quoted};

/// Where counts are kept.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum StoreUrl {
    /// In the process, and gone with it: `memory:`.
    Memory,
    /// In this directory: `disk:DIR`.
    Disk(PathBuf),
    /// In a database that others may share: `postgres://USER@HOST/DATABASE`. The whole URL, which may have a password in it.
    Postgres(String),
}

/// The name of a store. Where a colon at the end would need quotes, it may be left out.
///
/// ```
/// use tidegate::text::{StoreUrl, parse_store};
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
            let meant = nearest(kind, ["memory", "disk", "postgres"]);
            let advice =
                meant.map(|meant| format!("; {}", did_you_mean(&format!("{meant}:")))).unwrap_or_default();
            Err(format!("must be memory:, disk:DIRECTORY or postgres://…, found {}{advice}", quoted(text)))
        }
    }
}

impl std::fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Disk(folder) => write!(f, "disk:{}", folder.display()),
            StoreUrl::Postgres(url) => f.write_str(&without_password(url)),
        }
    }
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// The URL with its password struck out, wherever it stands.
fn without_password(url: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let (kind, rest) = base.split_once("//").unwrap_or(("", base));
    let shown = match rest.rsplit_once('@') {
        Some((who, place)) => {
            let (user, password) = who.split_once(':').map_or((who, ""), |(user, _)| (user, ":***"));
            format!("{kind}//{user}{password}@{place}")
        }
        None => base.to_owned(),
    };
    let hide =
        |pair: &str| if pair.starts_with("password=") { "password=***".to_owned() } else { pair.to_owned() };
    match query {
        Some(query) => format!("{shown}?{}", query.split('&').map(hide).collect::<Vec<_>>().join("&")),
        None => shown,
    }
}
