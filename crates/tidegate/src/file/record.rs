//! From the tree to typed fields, by the tables of [`super::fields`].
//!
//! This is the only place where a field's value is judged by itself: unknown names, missing fields, wrong kinds,
//! numbers out of range, words that are not allowed. A value that is wrong is reported and left out; its
//! neighbours are read all the same.
//!
//! A field that says `null` is a field left out. A field with nothing behind its colon is half an edit and an
//! error, except where a list is expected: a list with all its elements commented out is an empty list.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use hashbrown::HashMap;
use tidegate_core::{Capacity, Zone};

use super::diagnostic::Report;
use super::fields::{Field, Need, Shape, Table};
use super::gateway::Allowance;
use super::server::{LONGEST_TIMEOUT, Listen};
use super::source::Place;
use super::tree::{Entry, Kind, Node};
use crate::text::{
    StoreUrl, TimeOfDay, did_you_mean, folded, nearest, parse_address, parse_capacity, parse_clock,
    parse_decimal, parse_duration, parse_instant, parse_size, parse_store, parse_whole, quoted, shortened,
    shown_decimal, shown_duration, shown_size,
};

/// The fields of a mapping.
pub(super) struct Record {
    pub(super) place: Place,
    /// Whether all that was written could be read and nothing is missing.
    pub(super) sound: bool,
    /// Fields that somebody probably meant by a name that is none; they are not missing as well.
    meant: Vec<&'static str>,
    written: HashMap<&'static str, Written>,
}

/// A field that is written: where, and its value if that could be read.
struct Written {
    key_place: Place,
    place: Place,
    value: Option<Value>,
}

enum Value {
    Text(String),
    Word(&'static str),
    Limit(Capacity),
    Count(u64),
    Decimal(u64),
    Clock(TimeOfDay),
    Truth(bool),
    Duration(Duration),
    Size(u64),
    Listen(Listen),
    Store(StoreUrl),
    Instant(Duration),
    Zone(Zone),
    Allowance(Allowance),
    Texts(Vec<(String, Place)>),
    List(Vec<Record>),
    Section(Record),
}

macro_rules! takers {
    ($($name:ident: $variant:ident($type:ty)),+ $(,)?) => {
        $(
            #[doc = concat!("Takes the value of a field of shape `", stringify!($variant), "`.")]
            pub(super) fn $name(&mut self, field: &str) -> Option<$type> {
                match self.written.get_mut(field)?.value.take()? {
                    Value::$variant(value) => Some(value),
                    _ => None,
                }
            }
        )+
    };
}

impl Record {
    takers! {
        text: Text(String),
        limit: Limit(Capacity),
        count: Count(u64),
        decimal: Decimal(u64),
        clock: Clock(TimeOfDay),
        truth: Truth(bool),
        duration: Duration(Duration),
        size: Size(u64),
        listen: Listen(Listen),
        store: Store(StoreUrl),
        instant: Instant(Duration),
        zone: Zone(Zone),
        allowance: Allowance(Allowance),
        texts: Texts(Vec<(String, Place)>),
        list: List(Vec<Record>),
        section: Section(Record),
        word: Word(&'static str),
    }

    /// Takes a word as the choice it stands for.
    pub(super) fn choice<T: Copy>(
        &mut self,
        field: &str,
        all: &[T],
        word: fn(T) -> &'static str,
    ) -> Option<T> {
        let written = self.word(field)?;
        all.iter().copied().find(|choice| word(*choice) == written)
    }

    /// A text and where it stands, left where it is.
    pub(super) fn text_and_place(&self, field: &str) -> Option<(&str, Place)> {
        let written = self.written.get(field)?;
        match &written.value {
            Some(Value::Text(text)) => Some((text, written.place)),
            _ => None,
        }
    }

    /// The word of a field, left where it is.
    pub(super) fn peek_word(&self, field: &str) -> Option<&'static str> {
        match self.written.get(field)?.value {
            Some(Value::Word(word)) => Some(word),
            _ => None,
        }
    }

    /// Whether a field is left out, or was written so that it could be read.
    pub(super) fn can_be_read(&self, field: &str) -> bool {
        self.written.get(field).is_none_or(|written| written.value.is_some())
    }

    /// Whether a name that is none was probably meant to be this field.
    pub(super) fn means(&self, field: &str) -> bool {
        self.meant.contains(&field)
    }

    /// Where a field's value stands, if the field is written at all.
    pub(super) fn value_place(&self, field: &str) -> Option<Place> {
        self.written.get(field).map(|written| written.place)
    }

    /// Where a field's name stands, if the field is written at all.
    pub(super) fn key_place(&self, field: &str) -> Option<Place> {
        self.written.get(field).map(|written| written.key_place)
    }
}

/// The way from the top of the file to a value; written out only when there is something to report.
#[derive(Clone, Copy)]
pub(super) enum Path<'p> {
    Top,
    Field(&'p Path<'p>, &'p str),
    Element(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Top => Ok(()),
            Path::Field(Path::Top, name) => f.write_str(&shortened(name)),
            Path::Field(parent, name) => write!(f, "{parent}.{}", shortened(name)),
            Path::Element(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Reads a mapping; what cannot be read is reported and left out.
pub(super) fn read_record(
    report: &mut Report<'_>,
    node: &Node,
    table: &'static Table,
    path: &Path<'_>,
) -> Record {
    let mut record = Record { place: node.place, sound: true, meant: Vec::new(), written: HashMap::new() };
    let Kind::Map(entries) = &node.kind else {
        record.sound = false;
        if !matches!(node.kind, Kind::Broken) {
            report.error(node.place, path, format!("must be {}; found {}", mapping(table), node.found()));
        }
        return record;
    };
    for entry in entries {
        let path = Path::Field(path, &entry.key);
        if let Some(field) = table.field(&entry.key) {
            read_field(report, &mut record, entry, field, &path);
        } else {
            record.sound = false;
            record.meant.extend(report_unknown(report, entry, table, &path));
        }
    }
    report_missing(report, &mut record, node, table, path);
    record
}

fn read_field(
    report: &mut Report<'_>,
    record: &mut Record,
    entry: &Entry,
    field: &'static Field,
    path: &Path<'_>,
) {
    let node = entry.value.as_ref();
    if matches!(field.shape, Shape::Unread) {
        report.warning(entry.key_place, path, "not read by this version; it has no effect here");
        return;
    }
    if is_null(node) {
        return;
    }
    let value = match (&node.kind, &field.shape) {
        (Kind::Broken, _) => None,
        (Kind::Empty, Shape::List(_)) => Some(Value::List(Vec::new())),
        (Kind::Empty, Shape::Texts) => Some(Value::Texts(Vec::new())),
        (Kind::List(elements), Shape::Texts) => read_texts(report, elements, path).map(Value::Texts),
        (Kind::List(_), Shape::List(table)) => {
            let records = read_list(report, node, table, path);
            record.sound &= records.iter().all(|element| element.sound);
            Some(Value::List(records))
        }
        (Kind::Map(_), Shape::Section(table)) => {
            let section = read_record(report, node, table, path);
            record.sound &= section.sound;
            Some(Value::Section(section))
        }
        (Kind::Empty, _) => {
            let or_not = if matches!(field.need, Need::Always) { "" } else { "; or leave the field out" };
            let message = format!("has no value; it must be {}{or_not}", allowed(field));
            report.error(entry.key_place, path, message);
            None
        }
        (Kind::Scalar { text, plain }, shape) => read_scalar(report, node, text, *plain, shape, path),
        (Kind::List(_) | Kind::Map(_), shape) => {
            let dash = matches!((&node.kind, shape), (Kind::Map(_), Shape::List(_)));
            let help = dash.then(|| "an element of a list begins with a dash, '- '".to_owned());
            let message = format!("must be {}; found {}", allowed(field), node.found());
            report.error_with_help(node.place, path, message, help);
            None
        }
    };
    record.sound &= value.is_some();
    record.written.insert(field.name, Written { key_place: entry.key_place, place: node.place, value });
}

fn read_list(report: &mut Report<'_>, node: &Node, table: &'static Table, path: &Path<'_>) -> Vec<Record> {
    let Kind::List(elements) = &node.kind else { return Vec::new() };
    let read = |(index, element): (usize, &std::rc::Rc<Node>)| {
        read_record(report, element, table, &Path::Element(path, index))
    };
    elements.iter().enumerate().map(read).collect()
}

/// The texts of a list, if all of them are.
fn read_texts(
    report: &mut Report<'_>,
    elements: &[std::rc::Rc<Node>],
    path: &Path<'_>,
) -> Option<Vec<(String, Place)>> {
    let mut texts = Vec::with_capacity(elements.len());
    for (index, element) in elements.iter().enumerate() {
        match &element.kind {
            Kind::Scalar { text, .. } => texts.push((text.clone(), element.place)),
            Kind::Broken => {}
            _ => {
                let message = format!("must be a text; found {}", element.found());
                report.error(element.place, Path::Element(path, index), message);
            }
        }
    }
    (texts.len() == elements.len()).then_some(texts)
}

fn read_scalar(
    report: &mut Report<'_>,
    node: &Node,
    text: &str,
    plain: bool,
    shape: &Shape,
    path: &Path<'_>,
) -> Option<Value> {
    let mut help = None;
    let value = match shape {
        Shape::Text | Shape::Name => Ok(Value::Text(text.to_owned())),
        Shape::Word(words) => {
            let words = words();
            words.iter().find(|word| **word == text).map(|word| Value::Word(word)).ok_or_else(|| {
                help = nearest(text, words.iter().copied()).map(did_you_mean);
                format!("must be {}, found {}", listed(&words), quoted(text))
            })
        }
        Shape::Limit | Shape::Count { .. } | Shape::Whole { .. } if !plain => {
            let unquoted = parse_whole(text).map(|number| format!("; write {number} without quotes"));
            Err(format!("must be a whole number, found {}{}", node.found(), unquoted.unwrap_or_default()))
        }
        Shape::Limit => parse_capacity(text).map(Value::Limit),
        Shape::Count { most, advice } => parse_whole(text).and_then(|number| match u64::try_from(number) {
            Ok(count) if count > *most => Err(format!("must be at most {most}, found {number}")),
            Ok(count) if count > 0 => Ok(Value::Count(count)),
            _ => Err(format!("must be at least 1, found {number}; {advice}")),
        }),
        Shape::Whole { least, most } => parse_whole(text).and_then(|number| match u64::try_from(number) {
            Ok(count) if (*least..=*most).contains(&count) => Ok(Value::Count(count)),
            _ => Err(format!("must be from {least} to {most}, found {number}")),
        }),
        Shape::Decimal { least, most } => parse_decimal(text).and_then(|number| {
            if (*least..=*most).contains(&number) {
                return Ok(Value::Decimal(number));
            }
            Err(format!("must be {}, found {}", decimals(*least, *most), quoted(text)))
        }),
        Shape::Clock => parse_clock(text).map(Value::Clock),
        Shape::Truth => match text {
            "true" if plain => Ok(Value::Truth(true)),
            "false" if plain => Ok(Value::Truth(false)),
            _ => Err(format!("must be true or false, found {}", node.found())),
        },
        Shape::Duration => parse_duration(text).map(Value::Duration),
        Shape::Timeout { least } => parse_duration(text).and_then(|wait| timeout(wait, *least, text)),
        Shape::Size { least } => parse_size(text).and_then(|bytes| match bytes {
            _ if bytes < *least => {
                Err(format!("must be at least {}, found {}", shown_size(*least), quoted(text)))
            }
            _ => Ok(Value::Size(bytes)),
        }),
        Shape::Listen if text == "off" => Ok(Value::Listen(Listen::Off)),
        Shape::Listen => parse_address(text)
            .map(|address| Value::Listen(Listen::At(address)))
            .map_err(|why| format!("{why}; or write off to close the door")),
        Shape::Store => parse_store(text).map(Value::Store),
        Shape::Instant => parse_instant(text).map(Value::Instant),
        Shape::Zone => Zone::named(text).map(Value::Zone).ok_or_else(|| {
            help = zone_meant(text);
            format!("must be an IANA time zone such as UTC or Asia/Shanghai, found {}", quoted(text))
        }),
        Shape::Sha256 if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Ok(Value::Text(text.to_owned()))
        }
        Shape::Sha256 => {
            Err(format!("must be 64 hexadecimal digits, the SHA-256 of a token, found {}", quoted(text)))
        }
        Shape::Section(table) => Err(format!("must be {}; found {}", mapping(table), node.found())),
        Shape::List(table) => {
            Err(format!("must be a list, each element {}; found {}", mapping(table), node.found()))
        }
        Shape::Allowance => Allowance::parse(text, plain).map(Value::Allowance),
        Shape::Texts => Err(format!("must be a list of texts; found {}", node.found())),
        Shape::Unread => return None,
    };
    value.map_err(|message| report.error_with_help(node.place, path, message, help)).ok()
}

/// The bounds of a number; the least number above zero stands for anything above it.
fn decimals(least: u64, most: u64) -> String {
    let most = shown_decimal(most.into());
    match least {
        1 => format!("above 0 and at most {most}"),
        _ => format!("from {} to {most}", shown_decimal(least.into())),
    }
}

fn timeout(wait: Duration, least: Duration, text: &str) -> Result<Value, String> {
    let refuse = |side: &str, bound: Duration| {
        Err(format!("must be at {side} {}, found {}", shown_duration(bound), quoted(text)))
    };
    match wait {
        _ if wait < least => refuse("least", least),
        _ if wait > LONGEST_TIMEOUT => refuse("most", LONGEST_TIMEOUT),
        _ => Ok(Value::Duration(wait)),
    }
}

/// Reports a field that a table does not have, and returns those that it was probably meant to be.
fn report_unknown(
    report: &mut Report<'_>,
    entry: &Entry,
    table: &'static Table,
    path: &Path<'_>,
) -> Vec<&'static str> {
    let names: Vec<_> = table.names().collect();
    let message = format!("is not a field of {}; the fields are {}", table.what, listed_all(&names));
    let (meant, help) = if entry.key == "<<" {
        let help = "merge keys are not read; write the fields out, or use an alias for the whole value";
        (names, Some(help.to_owned()))
    } else {
        let meant = nearest(&entry.key, names);
        (meant.into_iter().collect(), meant.map(did_you_mean))
    };
    report.error_with_help(entry.key_place, path, message, help);
    meant
}

fn report_missing(
    report: &mut Report<'_>,
    record: &mut Record,
    node: &Node,
    table: &'static Table,
    path: &Path<'_>,
) {
    for field in table.fields.iter().filter(|field| matches!(field.need, Need::Always)) {
        let (place, message) = match node.field(field.name) {
            None => (node.place, format!("is missing; it must be {}", allowed(field))),
            Some(value) if is_null(value) => (value.place, format!("must be {}; found null", allowed(field))),
            Some(_) => continue,
        };
        record.sound = false;
        if !record.meant.contains(&field.name) {
            report.error(place, Path::Field(path, field.name), message);
        }
    }
}

/// The zone that was meant: the one of this city, or one spelled nearly so.
fn zone_meant(written: &str) -> Option<String> {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(Zone::names);
    let city = folded(written);
    if city.bytes().any(|b| b.is_ascii_digit()) && !city.contains('/') {
        return Some(
            "an offset is not a time zone; name a place with that offset, such as Asia/Shanghai".to_owned(),
        );
    }
    let is_its_city = |name: &&str| name.rsplit('/').next().is_some_and(|last| folded(last) == city);
    let names = || NAMES.iter().map(String::as_str);
    names().find(is_its_city).or_else(|| nearest(written, names())).map(did_you_mean)
}

fn is_null(node: &Node) -> bool {
    matches!(&node.kind, Kind::Scalar { text, plain: true } if ["null", "Null", "NULL", "~"].contains(&text.as_str()))
}

/// What a field may be, with its article.
fn allowed(field: &Field) -> String {
    match &field.shape {
        Shape::Text | Shape::Name => "a text".to_owned(),
        Shape::Word(words) => listed(&words()),
        Shape::Limit => "a whole number from -1".to_owned(),
        Shape::Count { .. } => "a whole number from 1".to_owned(),
        Shape::Whole { least, most } => format!("a whole number from {least} to {most}"),
        Shape::Decimal { least, most } => format!("a number {}", decimals(*least, *most)),
        Shape::Clock => "a time of day such as 09:30".to_owned(),
        Shape::Truth => "true or false".to_owned(),
        Shape::Duration | Shape::Timeout { .. } => "a duration such as 500ms, 15s, 10m, 24h or 7d".to_owned(),
        Shape::Size { .. } => "a size such as 64MiB or 1GiB".to_owned(),
        Shape::Listen => "an address such as 127.0.0.1:7700, or off".to_owned(),
        Shape::Store => "a store such as memory:, disk:./tidegate-data or postgres://…".to_owned(),
        Shape::Instant => "an instant such as 2026-01-20T00:00:00+08:00".to_owned(),
        Shape::Zone => "an IANA time zone such as UTC or Asia/Shanghai".to_owned(),
        Shape::Sha256 => "64 hexadecimal digits, the SHA-256 of a token".to_owned(),
        Shape::Section(table) => mapping(table),
        Shape::List(table) => format!("a list, each element {}", mapping(table)),
        Shape::Allowance => "a whole number from -1, inherit or unlimited".to_owned(),
        Shape::Texts => "a list of texts".to_owned(),
        Shape::Unread => "a section".to_owned(),
    }
}

/// What a table describes, with the fields it cannot do without.
fn mapping(table: &Table) -> String {
    let always = |field: &&Field| matches!(field.need, Need::Always);
    let needed: Vec<_> = table.fields.iter().filter(always).map(|field| field.name).collect();
    match needed.as_slice() {
        [] => format!(
            "{}, a mapping with fields such as {}",
            table.what,
            listed(&table.names().collect::<Vec<_>>())
        ),
        _ => format!("{}, a mapping with {}", table.what, listed_all(&needed)),
    }
}

/// `a, b or c`.
pub(super) fn listed(words: &[&str]) -> String {
    joined(words, "or")
}

/// `a, b and c`.
fn listed_all(words: &[&str]) -> String {
    joined(words, "and")
}

fn joined(words: &[&str], last: &str) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., end] => format!("{} {last} {end}", most.join(", ")),
    }
}
