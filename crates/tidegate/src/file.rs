//! Settings files: from what somebody wrote to limits that are known to make sense.
//!
//! A file passes through four hands, each with one question:
//!
//! ```text
//! bytes ──▶ source ──▶ tree ──▶ record ──▶ limits ──▶ Settings
//!           is it      is it    is each    does it
//!           text?      YAML?    field      make sense
//!                               allowed?   together?
//! ```
//!
//! Decided: all errors at once. Whatever is wrong is reported with its line and its path, left out, and reading
//! goes on; a file with any error gives no settings at all, so nothing is half applied. Only broken syntax ends
//! the reading early. What a field may be stands in one set of tables, from which the published schema is made
//! as well.
//!
//! Refused: reading through a general deserialiser. It would stop at the first error, and lose the places.
//!
//! ```
//! let text = b"limits: [{id: api, items: [{policy: day, limit: 100}]}]";
//! let reading = tidegate::file::read("tidegate.yaml", text).unwrap();
//! assert_eq!(reading.settings.limits[0].id, "api");
//!
//! let text = b"limits: [{id: api, items: [{policy: dya, limit: 1.5}]}]";
//! let wrong = tidegate::file::read("tidegate.yaml", text).unwrap_err();
//! assert_eq!(wrong.errors(), 2);
//! ```

mod activity;
mod auth;
mod cpu;
mod diagnostic;
mod env;
mod fields;
pub mod gateway;
mod kind;
mod limits;
mod record;
mod schema;
mod server;
mod source;
mod tree;

use std::rc::Rc;

use tidegate_core::LimitSpec;

use crate::activity::Rules;

pub use activity::ActivitySpec;
pub use auth::{Role, TokenSpec};
pub use cpu::{CpuFlaw, CpuSpec, TimeSlot, read_cpu, read_cpu_below};
pub use diagnostic::{Color, Diagnostic, Diagnostics, Excerpt, MOST_DIAGNOSTICS, Severity};
pub use gateway::{GatewaySpec, read_gateway};
pub use kind::FileKind;
pub use schema::schema;
pub use server::{
    LEAST_MEMORY, LONGEST_TIMEOUT, Listen, MOST_CONNECTIONS, MOST_WORKERS, ServerSpec, StoreSpec,
};

use diagnostic::Report;
use fields::{LIMIT, SETTINGS};
use limits::Ids;
pub use limits::{RESERVED, is_reserved};
use record::{Path, read_record};
pub use source::LARGEST_FILE;
use source::{Place, Source};
use tree::{Kind, Node};

/// The settings of a file that has no errors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// The limits, in the order they are written. [`tidegate_core::Limit::new`] accepts each of them at
    /// [`tidegate_core::Tick::NANOSECOND`], and no two have the same id.
    pub limits: Vec<LimitSpec>,
    /// The tokens that are known, no two the same; `None` if nobody needs one.
    pub tokens: Option<Vec<TokenSpec>>,
    /// Where the server listens, and how long it waits.
    pub server: ServerSpec,
    /// Where counts are kept.
    pub store: StoreSpec,
    /// Document 000's numbers, if the section is written; it is a limit then, called `activity`, that is not among the others.
    pub activity: Option<ActivitySpec>,
}

impl Settings {
    /// All limits: those below `limits`, and that of the section `activity`.
    pub fn all_limits(&self) -> Vec<LimitSpec> {
        let activity = self.activity.as_ref().map(|section| Rules::of(section).spec());
        self.limits.iter().cloned().chain(activity).collect()
    }
}

/// A file that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// What it says.
    pub settings: Settings,
    /// What in it has no effect.
    pub warnings: Diagnostics,
    /// Whether it says which limits there are, if only that there are none (`limits: []`). A file that was cut off, or is about to be
    /// written, does not.
    pub lists_limits: bool,
}

/// Reads a settings file, YAML or JSON. The name is for messages only.
///
/// The error holds everything that is wrong with the file, and its warnings.
pub fn read(name: &str, bytes: &[u8]) -> Result<Reading, Diagnostics> {
    let text = decoded(name, bytes)?;
    let source = Source::new(name, &text);
    let mut report = Report::new(&source);
    let tree = parsed(&mut report);
    let settings = tree.as_ref().map(|tree| read_settings(&mut report, tree)).unwrap_or_default();
    if report.failed() {
        return Err(report.into_diagnostics());
    }
    let limits = tree.as_ref().and_then(|tree| tree.field("limits"));
    let lists_limits = limits.is_some_and(|limits| matches!(limits.kind, Kind::List(_)));
    Ok(Reading { settings, warnings: report.into_diagnostics(), lists_limits })
}

/// Reads a text that is one limit, such as the body of a request. Paths are relative to the limit.
pub fn read_limit(name: &str, bytes: &[u8]) -> Result<LimitSpec, Diagnostics> {
    let text = decoded(name, bytes)?;
    let source = Source::new(name, &text);
    let mut report = Report::new(&source);
    let limit = parsed(&mut report).and_then(|tree| {
        let record = read_record(&mut report, &tree, &LIMIT, &Path::Top);
        limits::read_limit(&mut report, record, &tree, &Path::Top)
    });
    limit.filter(|_| !report.failed()).ok_or_else(|| report.into_diagnostics())
}

/// Reads the limits of a text that is either one limit or a settings file.
///
/// ```
/// let one = b"{id: api, items: [{policy: day, limit: 100}]}";
/// let many = b"limits: [{id: api, items: [{policy: day, limit: 100}]}]";
/// assert_eq!(tidegate::file::read_limits("one", one), tidegate::file::read_limits("many", many));
/// ```
pub fn read_limits(name: &str, bytes: &[u8]) -> Result<Vec<LimitSpec>, Diagnostics> {
    let text = decoded(name, bytes)?;
    let source = Source::new(name, &text);
    let mut report = Report::new(&source);
    let limits = parsed(&mut report).map(|tree| {
        let has_sections = SETTINGS.names().any(|section| tree.field(section).is_some());
        if has_sections || matches!(tree.kind, Kind::Empty) {
            return read_settings(&mut report, &tree).all_limits();
        }
        let record = read_record(&mut report, &tree, &LIMIT, &Path::Top);
        limits::read_limit(&mut report, record, &tree, &Path::Top).into_iter().collect()
    });
    limits.filter(|_| !report.failed()).ok_or_else(|| report.into_diagnostics())
}

fn read_settings(report: &mut Report<'_>, tree: &Node) -> Settings {
    if matches!(tree.kind, Kind::Empty) {
        return Settings::default();
    }
    let mut settings = read_record(report, tree, &SETTINGS, &Path::Top);
    let path = Path::Field(&Path::Top, "limits");
    let mut ids = Ids::inside(&path);
    let mut limits = Vec::new();
    let mut activity_limit = None;
    for (index, record) in settings.list("limits").unwrap_or_default().into_iter().enumerate() {
        ids.see(report, index, record.text_and_place("id"));
        if let Some((activity::ID, place)) = record.text_and_place("id") {
            activity_limit.get_or_insert(place);
        }
        let node = tree.field("limits").and_then(|list| list.element(index)).unwrap_or(tree);
        limits.extend(limits::read_limit(report, record, node, &Path::Element(&path, index)));
    }
    let key = settings.key_place(activity::ID).unwrap_or(tree.place);
    let activity = settings.section(activity::ID);
    let activity = activity.map(|section| ActivitySpec::read(report, section, key, activity_limit));
    let tokens = settings.section("auth").map(|auth| auth::read_tokens(report, auth));
    let server = settings.section("server").map(ServerSpec::read).unwrap_or_default();
    let store = settings.section("store").map(StoreSpec::read).unwrap_or_default();
    Settings { limits, tokens, server, store, activity }
}

/// The bytes as text, or what keeps them from being text.
fn decoded<'b>(name: &str, bytes: &'b [u8]) -> Result<std::borrow::Cow<'b, str>, Diagnostics> {
    let refuse = |text: &str, at: usize, message: String| {
        let source = Source::new(name, text);
        let mut report = Report::new(&source);
        report.error(Place::at(at), "", message);
        report.into_diagnostics()
    };
    if bytes.len() > LARGEST_FILE {
        let message = format!("a file must be at most {} MiB, and this one is longer", LARGEST_FILE >> 20);
        return Err(refuse("", 0, message));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.into()),
        Err(error) => {
            let at = error.valid_up_to();
            let message = match bytes {
                [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "this is UTF-16; save the file as UTF-8".to_owned(),
                _ => {
                    format!("must be UTF-8 text, found the byte 0x{:02x}; save the file as UTF-8", bytes[at])
                }
            };
            Err(refuse(&String::from_utf8_lossy(bytes), at, message))
        }
    }
}

/// The tree of the text; what cannot be shown on a line is refused before the parser sees it.
fn parsed(report: &mut Report<'_>) -> Option<Rc<Node>> {
    let text = report.source().text;
    let unseen = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\r' | '\t' | '\u{85}');
    match text.char_indices().find(|(_, letter)| unseen(*letter)) {
        Some((at, letter)) => {
            let message =
                format!("must not contain control characters, found U+{:04X}; remove it", u32::from(letter));
            report.error(Place { start: at, end: at + letter.len_utf8() }, "", message);
            None
        }
        None => tree::parse(report),
    }
}
