//! What `tidegate serve` is told.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use tidegate::file::{Listen, MOST_WORKERS};
use tidegate::text::{self, StoreUrl};

use crate::log::LogArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate serve
  tidegate serve --config tidegate.yaml
  tidegate serve --store memory:
  tidegate serve --http 0.0.0.0:7700 --resp off --config tidegate.yaml

What is said here goes before what the settings say.
MAX_CONCURRENT_TASKS, SLIDE_WINDOW_QUESTION_COUNT and SLIDE_WINDOW_TIME in the environment go before the section activity.
SIGTERM drains and ends, SIGHUP reads the settings again, as does an edit of the file.")]
pub(crate) struct ServeArgs {
    /// The settings: limits, tokens, bounds
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where counts are kept [default: disk:./tidegate-data]
    #[arg(long, value_name = "URL", value_parser = text::parse_store)]
    pub(crate) store: Option<StoreUrl>,
    /// Where to listen for HTTP; off for nowhere [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub(crate) http: Option<Listen>,
    /// Where to listen for RESP; off for nowhere [default: 127.0.0.1:7701]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub(crate) resp: Option<Listen>,
    /// How many threads answer; as many as there are cores unless said
    #[arg(long, value_name = "NUMBER", value_parser = parse_workers)]
    pub(crate) workers: Option<NonZeroUsize>,
    /// Let strangers in: listen at a public address without tokens
    #[arg(long)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) logging: LogArgs,
}

fn parse_address(text: &str) -> Result<Listen, String> {
    if text == "off" {
        return Ok(Listen::Off);
    }
    text::parse_address(text).map(Listen::At).map_err(|why| format!("{why}, or off"))
}

pub(super) fn parse_workers(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.parse::<u64>().ok().filter(|number| (1..=MOST_WORKERS).contains(number));
    let number = number.and_then(|number| NonZeroUsize::new(usize::try_from(number).ok()?));
    number.ok_or_else(|| format!("must be a whole number from 1 to {MOST_WORKERS}"))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn a_door_has_an_address_or_is_closed() {
        assert_eq!(parse_address("off"), Ok(Listen::Off));
        let here = SocketAddr::from(([127, 0, 0, 1], 7700));
        assert_eq!(parse_address("127.0.0.1:7700"), Ok(Listen::At(here)));
        for wrong in ["", "7700", "127.0.0.1", "127.0.0.1:70000", "http://127.0.0.1:7700"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn workers_are_few() {
        assert_eq!(parse_workers("2"), Ok(NonZeroUsize::new(2).expect("it is not")));
        for wrong in ["0", "-1", "1025", "99999999999", "1.5", ""] {
            assert!(parse_workers(wrong).is_err(), "{wrong}");
        }
    }
}
