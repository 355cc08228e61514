//! Names of stores: `memory:`, `disk:DIR`.

use std::path::PathBuf;

use super::{did_you_mean, nearest, quoted};

/// Where counts are kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StoreUrl {
    /// In the process, and gone with it: `memory:`.
    Memory,
    /// In this directory: `disk:DIR`.
    Disk(PathBuf),
}

/// The name of a store. Where a colon at the end would need quotes, it may be left out.
///
/// ```
/// use tidegate::text::{StoreUrl, parse_store};
///
/// assert_eq!(parse_store("memory"), Ok(StoreUrl::Memory));
/// assert_eq!(parse_store("disk:./data"), Ok(StoreUrl::Disk("./data".into())));
/// assert!(parse_store("disk:").unwrap_err().contains("disk:./tidegate-data"));
/// ```
pub fn parse_store(text: &str) -> Result<StoreUrl, String> {
    match text.split_once(':') {
        Some(("memory", "")) => Ok(StoreUrl::Memory),
        None if text == "memory" => Ok(StoreUrl::Memory),
        Some(("disk", folder)) if !folder.is_empty() => Ok(StoreUrl::Disk(PathBuf::from(folder))),
        Some(("disk", _)) => Err("names no directory; write disk:./tidegate-data".to_owned()),
        _ if text == "disk" => Err("names no directory; write disk:./tidegate-data".to_owned()),
        other => {
            let kind = other.map_or(text, |(kind, _)| kind);
            let meant = nearest(kind, ["memory", "disk"]);
            let advice =
                meant.map(|meant| format!("; {}", did_you_mean(&format!("{meant}:")))).unwrap_or_default();
            Err(format!("must be memory: or disk:DIRECTORY, found {}{advice}", quoted(text)))
        }
    }
}

impl std::fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Disk(folder) => write!(f, "disk:{}", folder.display()),
        }
    }
}
