//! What `tidegate serve` is told.

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::log::LogArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate serve
  tidegate serve --config tidegate.yaml
  tidegate serve --http 0.0.0.0:7700 --resp off --config tidegate.yaml

SIGTERM drains and ends, SIGHUP reads the settings again, as does an edit of the file.")]
pub(crate) struct ServeArgs {
    /// The settings: limits, tokens, bounds
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where counts are kept
    #[arg(long, value_name = "URL", default_value = "memory:", value_parser = store_url)]
    pub(crate) store: StoreUrl,
    /// Where to listen for HTTP; off for nowhere
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7700", value_parser = address)]
    pub(crate) http: Place,
    /// Where to listen for RESP; off for nowhere
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7701", value_parser = address)]
    pub(crate) resp: Place,
    /// How many threads answer; as many as there are cores unless said
    #[arg(long, value_name = "NUMBER")]
    pub(crate) workers: Option<NonZeroUsize>,
    /// Let strangers in: listen at a public address without tokens
    #[arg(long)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) logging: LogArgs,
}

/// Where a door is, if it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) Option<SocketAddr>);

/// Where counts are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// In this process, and gone with it.
    Memory,
}

fn address(written: &str) -> Result<Place, String> {
    if written == "off" {
        return Ok(Place(None));
    }
    let wrong = || "must be an address and a port, such as 127.0.0.1:7700, or off".to_owned();
    let first = written.to_socket_addrs().map_err(|_| wrong())?.next();
    first.map(|address| Place(Some(address))).ok_or_else(wrong)
}

fn store_url(written: &str) -> Result<StoreUrl, String> {
    match written {
        "memory:" | "memory" => Ok(StoreUrl::Memory),
        _ => Err("must be memory:, the only store there is so far".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_has_an_address_or_is_closed() {
        assert_eq!(address("off"), Ok(Place(None)));
        let here = SocketAddr::from(([127, 0, 0, 1], 7700));
        assert_eq!(address("127.0.0.1:7700"), Ok(Place(Some(here))));
        for wrong in ["", "7700", "127.0.0.1", "127.0.0.1:70000", "http://127.0.0.1:7700"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn there_is_one_store() {
        assert_eq!(store_url("memory:"), Ok(StoreUrl::Memory));
        assert!(store_url("disk:./data").is_err());
    }
}
