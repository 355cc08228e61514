//! Arguments of `tidegate serve`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use tidegate_config::text;
use tidegate_server::settings::{Listen, MAX_WORKER_THREADS, StoreUrl, parse_store};

use crate::log::LogArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate serve
  tidegate serve --config tidegate.yaml
  tidegate serve --store memory:
  tidegate serve --http 0.0.0.0:7700 --resp off --config tidegate.yaml

Flags override the settings file.
The variables MAX_CONCURRENT_TASKS, SLIDE_WINDOW_QUESTION_COUNT and SLIDE_WINDOW_TIME override its section activity.
SIGTERM drains and exits. SIGHUP or an edit of the file reloads the settings.")]
pub(crate) struct ServeArgs {
    /// Settings file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Store URL [default: disk:./tidegate-data]
    #[arg(long, value_name = "URL", value_parser = parse_store)]
    pub(crate) store: Option<StoreUrl>,
    /// HTTP address, or off [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub(crate) http: Option<Listen>,
    /// RESP address, or off [default: 127.0.0.1:7701]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub(crate) resp: Option<Listen>,
    /// Number of worker threads [default: one per core]
    #[arg(long, value_name = "NUMBER", value_parser = parse_workers)]
    pub(crate) workers: Option<NonZeroUsize>,
    /// Allow a public address without tokens
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
    let number = text.parse::<u64>().ok().filter(|number| (1..=MAX_WORKER_THREADS).contains(number));
    let number = number.and_then(|number| NonZeroUsize::new(usize::try_from(number).ok()?));
    number.ok_or_else(|| format!("must be a whole number from 1 to {MAX_WORKER_THREADS}"))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn listen_address_may_be_off() {
        assert_eq!(parse_address("off"), Ok(Listen::Off));
        let here = SocketAddr::from(([127, 0, 0, 1], 7700));
        assert_eq!(parse_address("127.0.0.1:7700"), Ok(Listen::At(here)));
        for wrong in ["", "7700", "127.0.0.1", "127.0.0.1:70000", "http://127.0.0.1:7700"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn worker_count_is_bounded() {
        assert_eq!(parse_workers("2"), Ok(NonZeroUsize::new(2).expect("not 0")));
        for wrong in ["0", "-1", "1025", "99999999999", "1.5", ""] {
            assert!(parse_workers(wrong).is_err(), "{wrong}");
        }
    }
}
