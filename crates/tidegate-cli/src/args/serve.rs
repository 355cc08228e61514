//! What `tidegate serve` is told.

use std::net::ToSocketAddrs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use tidegate::file::Listen;

use crate::log::LogArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate serve
  tidegate serve --config tidegate.yaml
  tidegate serve --http 0.0.0.0:7700 --resp off --config tidegate.yaml

What is said here goes before what the settings say.
SIGTERM drains and ends, SIGHUP reads the settings again, as does an edit of the file.")]
pub(crate) struct ServeArgs {
    /// The settings: limits, tokens, bounds
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where counts are kept [default: memory:]
    #[arg(long, value_name = "URL", value_parser = store_url)]
    pub(crate) store: Option<StoreUrl>,
    /// Where to listen for HTTP; off for nowhere [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) http: Option<Listen>,
    /// Where to listen for RESP; off for nowhere [default: 127.0.0.1:7701]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) resp: Option<Listen>,
    /// How many threads answer; as many as there are cores unless said
    #[arg(long, value_name = "NUMBER")]
    pub(crate) workers: Option<NonZeroUsize>,
    /// Let strangers in: listen at a public address without tokens
    #[arg(long)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) logging: LogArgs,
}

/// Where counts are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// In this process, and gone with it.
    Memory,
}

fn address(written: &str) -> Result<Listen, String> {
    if written == "off" {
        return Ok(Listen::Off);
    }
    let wrong = || "must be an address and a port, such as 127.0.0.1:7700, or off".to_owned();
    let first = written.to_socket_addrs().map_err(|_| wrong())?.next();
    first.map(Listen::At).ok_or_else(wrong)
}

fn store_url(written: &str) -> Result<StoreUrl, String> {
    match written {
        "memory:" | "memory" => Ok(StoreUrl::Memory),
        _ => Err("must be memory:, the only store there is so far".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn a_door_has_an_address_or_is_closed() {
        assert_eq!(address("off"), Ok(Listen::Off));
        let here = SocketAddr::from(([127, 0, 0, 1], 7700));
        assert_eq!(address("127.0.0.1:7700"), Ok(Listen::At(here)));
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
