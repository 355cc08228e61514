//! The log on standard error, as text or as JSON.
//!
//! Text is one short line per event, in color on a terminal. JSON is one object per line with `timestamp` (RFC 3339,
//! UTC), `level`, `message`, the fields of the event, and `target`, the module. A message is a constant name;
//! variable parts are fields.
//!
//! `--log-level` applies to Tidegate's own events. Libraries log warnings and errors only.
//!
//! Logging never blocks; see [`nonblocking_writer`]. Log files, rotation and filter expressions are not supported:
//! service managers collect standard error.

mod nonblocking_writer;

use std::sync::OnceLock;
use std::time::Duration;

use clap::ValueEnum;
use tidegate_config::Color;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry};

use crate::{Failure, color_of_stderr};
use nonblocking_writer::NonblockingWriter;

/// Prefix of Tidegate's own targets.
const OWN_TARGETS: &str = "tidegate";

/// The log arguments.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct LogArgs {
    /// Log format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub(crate) log: LogFormat,
    /// Log level
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = LogLevel::Info)]
    pub(crate) log_level: LogLevel,
}

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line per event
    Text,
    /// One JSON object per line
    Json,
}

/// The log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Failures
    Error,
    /// Failures and warnings
    Warn,
    /// Also normal events
    Info,
    /// Also every connection
    Debug,
    /// Everything
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> LevelFilter {
        match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }
}

/// Installs the log. Once per process.
pub(crate) fn init(format: LogFormat, level: LogLevel) -> Result<(), Failure> {
    let writer = NonblockingWriter::over(std::io::stderr())
        .map_err(|error| Failure::Failed(format!("cannot start the log: {error}")))?;
    let subscriber = subscriber(format, level, color_of_stderr(), writer.clone());
    let _first = WRITER.set(writer);
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|error| Failure::Failed(format!("cannot start the log: {error}")))
}

/// The log writer of this process.
static WRITER: OnceLock<NonblockingWriter> = OnceLock::new();

/// Longest wait for pending lines at exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Flushes the log within a time limit.
pub(crate) fn finish() {
    if let Some(writer) = WRITER.get() {
        writer.finish(FLUSH_TIMEOUT);
    }
}

/// Builds a subscriber that writes to a writer.
fn subscriber<W>(
    format: LogFormat,
    level: LogLevel,
    color: Color,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync + 'static>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let own = LevelFilter::from(level);
    let others = own.min(LevelFilter::WARN);
    // Warnings of the HTTP/2 library are caused by clients, and metrics count them.
    let of_clients = if own < LevelFilter::DEBUG { own.min(LevelFilter::ERROR) } else { others };
    let filter =
        Targets::new().with_default(others).with_target(OWN_TARGETS, own).with_target("h2", of_clients);
    match format {
        LogFormat::Text => {
            let text = layer().compact().with_target(false).with_ansi(color == Color::Ansi);
            Box::new(Registry::default().with(text.with_writer(writer).with_filter(filter)))
        }
        LogFormat::Json => {
            let json = layer().json().flatten_event(true).with_current_span(false).with_span_list(false);
            Box::new(Registry::default().with(json.with_writer(writer).with_filter(filter)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    use jiff::Timestamp;
    use serde_json::Value;

    use super::*;

    #[derive(Clone, Default)]
    struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The log of a closure.
    fn logged(format: LogFormat, level: LogLevel, color: Color, happening: impl FnOnce()) -> String {
        let buffer = SharedBuffer::default();
        let to = buffer.clone();
        let subscriber = subscriber(format, level, color, move || to.clone());
        tracing::subscriber::with_default(subscriber, happening);
        let bytes = buffer.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8(bytes).expect("a log is text")
    }

    fn refused() {
        tracing::info!(target: "tidegate_server", limit = "login", left_out = 7_u64, "refused");
    }

    #[test]
    fn http2_warnings_are_logged_at_debug_level_only() {
        let complaint = || tracing::warn!(target: "h2::proto::streams", "a client reset too much");
        assert_eq!(logged(LogFormat::Text, LogLevel::Info, Color::Plain, complaint), "");
        assert!(logged(LogFormat::Text, LogLevel::Debug, Color::Plain, complaint).contains("reset too much"));
        let other = || tracing::warn!(target: "mio", "heard");
        assert!(logged(LogFormat::Text, LogLevel::Info, Color::Plain, other).contains("heard"));
    }

    #[test]
    fn json_log_has_one_object_per_line() {
        let text = logged(LogFormat::Json, LogLevel::Info, Color::Plain, || {
            refused();
            tracing::warn!(key = "a\"\n\u{1b}[31mb", "odd");
        });
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        let [one, other] = &lines[..] else { panic!("two lines: {text}") };
        assert_eq!((&one["level"], &one["message"]), (&"INFO".into(), &"refused".into()));
        assert_eq!((&one["limit"], &one["left_out"]), (&"login".into(), &7.into()));
        assert_eq!(one["target"], "tidegate_server");
        let at = one["timestamp"].as_str().expect("a text");
        assert!(at.ends_with('Z') && at.parse::<Timestamp>().is_ok(), "{at}");
        assert_eq!((&other["level"], &other["key"]), (&"WARN".into(), &"a\"\n\u{1b}[31mb".into()));
    }

    #[test]
    fn text_log_has_color_only_on_a_terminal() {
        let plain = logged(LogFormat::Text, LogLevel::Info, Color::Plain, refused);
        assert!(plain.ends_with(" INFO refused limit=\"login\" left_out=7\n"), "{plain:?}");
        assert!(!plain.contains('\u{1b}'), "{plain:?}");
        let coloured = logged(LogFormat::Text, LogLevel::Info, Color::Ansi, refused);
        assert!(coloured.contains('\u{1b}') && coloured.contains("refused"), "{coloured:?}");
    }

    #[test]
    fn level_applies_to_own_events() {
        let events = || {
            tracing::debug!(target: "tidegate_server::serve", "ours");
            tracing::info!(target: "hyper::proto", "theirs");
            tracing::warn!(target: "hyper::proto", "their warning");
        };
        let lines = |level| logged(LogFormat::Text, level, Color::Plain, events).lines().count();
        assert_eq!(lines(LogLevel::Error), 0);
        assert_eq!(lines(LogLevel::Warn), 1);
        assert_eq!(lines(LogLevel::Info), 1);
        assert_eq!(lines(LogLevel::Debug), 2);
    }
}
