//! Converts a YAML mapping to typed fields, as a [`MappingSchema`] describes them.
//!
//! This module checks each field by itself. It reports unknown names, missing fields, wrong types, numbers out of range and words
//! that are not allowed. An invalid value is reported and omitted; the other fields are still read.
//!
//! A field with the value `null` counts as absent. A field without a value after its colon is an error, because it is usually an
//! unfinished edit. A list without a value is an empty list, because all its elements may be commented out.

use std::fmt;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use hashbrown::HashMap;
use tidegate_core::time::format_duration;
use tidegate_core::{Capacity, Zone};

use crate::diagnostic::DiagnosticSink;
use crate::schema::{FieldSchema, FieldType, MAX_TIMEOUT, MappingSchema, Presence};
use crate::source::SourceSpan;
use crate::text::{
    TimeOfDay, did_you_mean, format_decimal, format_size, nearest, normalize_word, parse_capacity,
    parse_decimal, parse_duration, parse_instant, parse_size, parse_time_of_day, parse_whole, quoted,
    shortened,
};
use crate::yaml::{YamlEntry, YamlKind, YamlNode};

/// The typed fields of a mapping. The `take_` methods move a value out; `None` means that the field is absent or invalid.
pub struct Mapping {
    /// The position of the mapping.
    pub span: SourceSpan,
    /// Whether all fields are valid and no required field is missing.
    pub is_valid: bool,
    /// Fields that are the likely meaning of an unknown name. They are not reported as missing.
    misspelled: Vec<&'static str>,
    fields: HashMap<&'static str, ParsedField>,
}

/// A field that is present: its positions, and its value if valid.
struct ParsedField {
    key_span: SourceSpan,
    span: SourceSpan,
    value: Option<FieldValue>,
}

enum FieldValue {
    Text(String),
    Word(&'static str),
    Limit(Capacity),
    Count(u64),
    Decimal(u64),
    TimeOfDay(TimeOfDay),
    Bool(bool),
    Duration(Duration),
    Size(u64),
    Instant(Duration),
    Zone(Zone),
    Texts(Vec<(String, SourceSpan)>),
    List(Vec<Mapping>),
    Section(Mapping),
}

macro_rules! take_methods {
    ($($name:ident: $variant:ident($type:ty)),+ $(,)?) => {
        $(
            #[doc = concat!("Takes the value of a field of type `", stringify!($variant), "`.")]
            pub fn $name(&mut self, field: &str) -> Option<$type> {
                match self.fields.get_mut(field)?.value.take()? {
                    FieldValue::$variant(value) => Some(value),
                    _ => None,
                }
            }
        )+
    };
}

impl Mapping {
    take_methods! {
        take_text: Text(String),
        take_limit: Limit(Capacity),
        take_count: Count(u64),
        take_decimal: Decimal(u64),
        take_time_of_day: TimeOfDay(TimeOfDay),
        take_bool: Bool(bool),
        take_duration: Duration(Duration),
        take_size: Size(u64),
        take_instant: Instant(Duration),
        take_zone: Zone(Zone),
        take_texts: Texts(Vec<(String, SourceSpan)>),
        take_list: List(Vec<Mapping>),
        take_section: Section(Mapping),
        take_word: Word(&'static str),
    }

    /// Takes a word and returns the choice with that word.
    pub fn take_choice<T: Copy>(&mut self, field: &str, all: &[T], word: fn(T) -> &'static str) -> Option<T> {
        let written = self.take_word(field)?;
        all.iter().copied().find(|choice| word(*choice) == written)
    }

    /// A text and its position. Does not take it.
    pub fn text_and_span(&self, field: &str) -> Option<(&str, SourceSpan)> {
        let written = self.fields.get(field)?;
        match &written.value {
            Some(FieldValue::Text(text)) => Some((text, written.span)),
            _ => None,
        }
    }

    /// The word of a field. Does not take it.
    pub fn word(&self, field: &str) -> Option<&'static str> {
        match self.fields.get(field)?.value {
            Some(FieldValue::Word(word)) => Some(word),
            _ => None,
        }
    }

    /// The elements of a list. Does not take them.
    pub fn list(&self, field: &str) -> &[Mapping] {
        match self.fields.get(field).and_then(|field| field.value.as_ref()) {
            Some(FieldValue::List(elements)) => elements,
            _ => &[],
        }
    }

    /// Whether a field is absent or valid.
    pub fn is_readable(&self, field: &str) -> bool {
        self.fields.get(field).is_none_or(|field| field.value.is_some())
    }

    /// Whether this field is the likely meaning of an unknown name.
    pub fn is_misspelled(&self, field: &str) -> bool {
        self.misspelled.contains(&field)
    }

    /// Where a field's value is, if the field is written.
    pub fn value_span(&self, field: &str) -> Option<SourceSpan> {
        self.fields.get(field).map(|field| field.span)
    }

    /// Where a field's name is, if the field is written.
    pub fn key_span(&self, field: &str) -> Option<SourceSpan> {
        self.fields.get(field).map(|field| field.key_span)
    }
}

/// The path from the top of a file to a value. It is formatted only for diagnostics.
#[derive(Clone, Copy)]
pub enum FieldPath<'p> {
    /// The file itself.
    Top,
    /// A field of a mapping.
    Field(&'p FieldPath<'p>, &'p str),
    /// An element of a list.
    Element(&'p FieldPath<'p>, usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldPath::Top => Ok(()),
            FieldPath::Field(FieldPath::Top, name) => f.write_str(&shortened(name)),
            FieldPath::Field(parent, name) => write!(f, "{parent}.{}", shortened(name)),
            FieldPath::Element(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Reads a mapping. Invalid fields are reported and omitted.
pub fn read_mapping(
    sink: &mut DiagnosticSink<'_>,
    node: &YamlNode,
    schema: &'static MappingSchema,
    path: &FieldPath<'_>,
) -> Mapping {
    let mut mapping =
        Mapping { span: node.span, is_valid: true, misspelled: Vec::new(), fields: HashMap::new() };
    let YamlKind::Map(entries) = &node.kind else {
        mapping.is_valid = false;
        if !matches!(node.kind, YamlKind::Broken) {
            sink.error(
                node.span,
                path,
                format!("must be {}; found {}", describe_schema(schema), node.describe()),
            );
        }
        return mapping;
    };
    for entry in entries {
        let path = FieldPath::Field(path, &entry.key);
        if let Some(field) = schema.field(&entry.key) {
            read_field(sink, &mut mapping, entry, field, &path);
        } else {
            mapping.is_valid = false;
            mapping.misspelled.extend(report_unknown(sink, entry, schema, &path));
        }
    }
    report_missing(sink, &mut mapping, node, schema, path);
    mapping
}

fn read_field(
    sink: &mut DiagnosticSink<'_>,
    mapping: &mut Mapping,
    entry: &YamlEntry,
    field: &'static FieldSchema,
    path: &FieldPath<'_>,
) {
    let node = entry.value.as_ref();
    if let FieldType::Unread { warning } = field.value {
        sink.warning(entry.key_span, path, warning);
        return;
    }
    if is_null(node) {
        return;
    }
    let value = match (&node.kind, &field.value) {
        (YamlKind::Broken, _) => None,
        (YamlKind::Empty, FieldType::List { .. }) => Some(FieldValue::List(Vec::new())),
        (YamlKind::Empty, FieldType::Texts) => Some(FieldValue::Texts(Vec::new())),
        (YamlKind::List(elements), FieldType::Texts) => {
            read_texts(sink, elements, path).map(FieldValue::Texts)
        }
        (YamlKind::List(_), FieldType::List { element: schema, .. }) => {
            let records = read_list(sink, node, schema, path);
            mapping.is_valid &= records.iter().all(|element| element.is_valid);
            Some(FieldValue::List(records))
        }
        (YamlKind::Map(_), FieldType::Section(schema)) => {
            let section = read_mapping(sink, node, schema, path);
            mapping.is_valid &= section.is_valid;
            Some(FieldValue::Section(section))
        }
        (YamlKind::Empty, _) => {
            let or_not =
                if matches!(field.presence, Presence::Always) { "" } else { "; or leave the field out" };
            let message = format!("has no value; it must be {}{or_not}", describe_allowed(field));
            sink.error(entry.key_span, path, message);
            None
        }
        (YamlKind::Scalar { text, plain }, shape) => read_scalar(sink, node, text, *plain, shape, path),
        (YamlKind::List(_) | YamlKind::Map(_), shape) => {
            let dash = matches!((&node.kind, shape), (YamlKind::Map(_), FieldType::List { .. }));
            let help = dash.then(|| "an element of a list begins with a dash, '- '".to_owned());
            let message = format!("must be {}; found {}", describe_allowed(field), node.describe());
            sink.error_with_help(node.span, path, message, help);
            None
        }
    };
    mapping.is_valid &= value.is_some();
    mapping.fields.insert(field.name, ParsedField { key_span: entry.key_span, span: node.span, value });
}

fn read_list(
    sink: &mut DiagnosticSink<'_>,
    node: &YamlNode,
    schema: &'static MappingSchema,
    path: &FieldPath<'_>,
) -> Vec<Mapping> {
    let YamlKind::List(elements) = &node.kind else { return Vec::new() };
    let read = |(index, element): (usize, &Rc<YamlNode>)| {
        read_mapping(sink, element, schema, &FieldPath::Element(path, index))
    };
    elements.iter().enumerate().map(read).collect()
}

/// The texts of a list. `None` if an element is not a text.
fn read_texts(
    sink: &mut DiagnosticSink<'_>,
    elements: &[Rc<YamlNode>],
    path: &FieldPath<'_>,
) -> Option<Vec<(String, SourceSpan)>> {
    let mut texts = Vec::with_capacity(elements.len());
    for (index, element) in elements.iter().enumerate() {
        match &element.kind {
            YamlKind::Scalar { text, .. } => texts.push((text.clone(), element.span)),
            YamlKind::Broken => {}
            _ => {
                let message = format!("must be a text; found {}", element.describe());
                sink.error(element.span, FieldPath::Element(path, index), message);
            }
        }
    }
    (texts.len() == elements.len()).then_some(texts)
}

fn read_scalar(
    sink: &mut DiagnosticSink<'_>,
    node: &YamlNode,
    text: &str,
    plain: bool,
    field_type: &FieldType,
    path: &FieldPath<'_>,
) -> Option<FieldValue> {
    let mut help = None;
    let value = match field_type {
        FieldType::Text | FieldType::Name => Ok(FieldValue::Text(text.to_owned())),
        FieldType::Word(words) => {
            let words = words();
            words.iter().find(|word| **word == text).map(|word| FieldValue::Word(word)).ok_or_else(|| {
                help = nearest(text, words.iter().copied()).map(did_you_mean);
                format!("must be {}, found {}", join_or(&words), quoted(text))
            })
        }
        FieldType::Limit | FieldType::Count { .. } | FieldType::Whole { .. } if !plain => {
            let unquoted = parse_whole(text).map(|number| format!("; write {number} without quotes"));
            Err(format!("must be a whole number, found {}{}", node.describe(), unquoted.unwrap_or_default()))
        }
        FieldType::Limit => parse_capacity(text).map(FieldValue::Limit),
        FieldType::Count { most, advice } => {
            parse_whole(text).and_then(|number| match u64::try_from(number) {
                Ok(count) if count > *most => Err(format!("must be at most {most}, found {number}")),
                Ok(count) if count > 0 => Ok(FieldValue::Count(count)),
                _ => Err(format!("must be at least 1, found {number}; {advice}")),
            })
        }
        FieldType::Whole { least, most } => {
            parse_whole(text).and_then(|number| match u64::try_from(number) {
                Ok(count) if (*least..=*most).contains(&count) => Ok(FieldValue::Count(count)),
                _ => Err(format!("must be from {least} to {most}, found {number}")),
            })
        }
        FieldType::Decimal { least, most } => parse_decimal(text).and_then(|number| {
            if (*least..=*most).contains(&number) {
                return Ok(FieldValue::Decimal(number));
            }
            Err(format!("must be {}, found {}", decimal_bounds(*least, *most), quoted(text)))
        }),
        FieldType::TimeOfDay => parse_time_of_day(text).map(FieldValue::TimeOfDay),
        FieldType::Bool => match text {
            "true" if plain => Ok(FieldValue::Bool(true)),
            "false" if plain => Ok(FieldValue::Bool(false)),
            _ => Err(format!("must be true or false, found {}", node.describe())),
        },
        FieldType::Duration => parse_duration(text).map(FieldValue::Duration),
        FieldType::Timeout { least } => {
            parse_duration(text).and_then(|wait| check_timeout(wait, *least, text))
        }
        FieldType::Size { least } => parse_size(text).and_then(|bytes| match bytes {
            _ if bytes < *least => {
                Err(format!("must be at least {}, found {}", format_size(*least), quoted(text)))
            }
            _ => Ok(FieldValue::Size(bytes)),
        }),
        FieldType::Instant => parse_instant(text).map(FieldValue::Instant),
        FieldType::Zone => Zone::named(text).map(FieldValue::Zone).ok_or_else(|| {
            help = suggest_zone(text);
            format!("must be an IANA time zone such as UTC or Asia/Shanghai, found {}", quoted(text))
        }),
        FieldType::Custom(custom) => (custom.check)(text, plain).map(|()| FieldValue::Text(text.to_owned())),
        FieldType::Section(schema) => {
            Err(format!("must be {}; found {}", describe_schema(schema), node.describe()))
        }
        FieldType::List { element: schema, .. } => Err(format!(
            "must be a list, each element {}; found {}",
            describe_schema(schema),
            node.describe()
        )),
        FieldType::Texts => Err(format!("must be a list of texts; found {}", node.describe())),
        FieldType::Unread { .. } => return None,
    };
    value.map_err(|message| sink.error_with_help(node.span, path, message, help)).ok()
}

/// The bounds of a decimal number as text. A minimum of one billionth means "above 0".
fn decimal_bounds(least: u64, most: u64) -> String {
    let most = format_decimal(most.into());
    match least {
        1 => format!("above 0 and at most {most}"),
        _ => format!("from {} to {most}", format_decimal(least.into())),
    }
}

fn check_timeout(wait: Duration, least: Duration, text: &str) -> Result<FieldValue, String> {
    let refuse = |side: &str, bound: Duration| {
        Err(format!("must be at {side} {}, found {}", format_duration(bound), quoted(text)))
    };
    match wait {
        _ if wait < least => refuse("least", least),
        _ if wait > MAX_TIMEOUT => refuse("most", MAX_TIMEOUT),
        _ => Ok(FieldValue::Duration(wait)),
    }
}

/// Reports an unknown field. Returns the fields that are its likely meaning.
fn report_unknown(
    sink: &mut DiagnosticSink<'_>,
    entry: &YamlEntry,
    schema: &'static MappingSchema,
    path: &FieldPath<'_>,
) -> Vec<&'static str> {
    let names: Vec<_> = schema.names().collect();
    let message = format!("is not a field of {}; the fields are {}", schema.what, join_and(&names));
    let (meant, help) = if entry.key == "<<" {
        let help = "merge keys are not read; write the fields out, or use an alias for the whole value";
        (names, Some(help.to_owned()))
    } else {
        let meant = nearest(&entry.key, names);
        (meant.into_iter().collect(), meant.map(did_you_mean))
    };
    sink.error_with_help(entry.key_span, path, message, help);
    meant
}

fn report_missing(
    sink: &mut DiagnosticSink<'_>,
    mapping: &mut Mapping,
    node: &YamlNode,
    schema: &'static MappingSchema,
    path: &FieldPath<'_>,
) {
    for field in schema.fields.iter().filter(|field| matches!(field.presence, Presence::Always)) {
        let (span, message) = match node.field(field.name) {
            None => (node.span, format!("is missing; it must be {}", describe_allowed(field))),
            Some(value) if is_null(value) => {
                (value.span, format!("must be {}; found null", describe_allowed(field)))
            }
            Some(_) => continue,
        };
        mapping.is_valid = false;
        if !mapping.misspelled.contains(&field.name) {
            sink.error(span, FieldPath::Field(path, field.name), message);
        }
    }
}

/// Suggests a time zone: one of this city, or one with a similar name.
fn suggest_zone(written: &str) -> Option<String> {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(Zone::names);
    let city = normalize_word(written);
    if city.bytes().any(|b| b.is_ascii_digit()) && !city.contains('/') {
        return Some(
            "an offset is not a time zone; name a place with that offset, such as Asia/Shanghai".to_owned(),
        );
    }
    let is_its_city = |name: &&str| name.rsplit('/').next().is_some_and(|last| normalize_word(last) == city);
    let names = || NAMES.iter().map(String::as_str);
    names().find(is_its_city).or_else(|| nearest(written, names())).map(did_you_mean)
}

fn is_null(node: &YamlNode) -> bool {
    matches!(&node.kind, YamlKind::Scalar { text, plain: true } if ["null", "Null", "NULL", "~"].contains(&text.as_str()))
}

/// A description of the valid values of a field, with its article.
fn describe_allowed(field: &FieldSchema) -> String {
    match &field.value {
        FieldType::Text | FieldType::Name => "a text".to_owned(),
        FieldType::Word(words) => join_or(&words()),
        FieldType::Limit => "a whole number from -1".to_owned(),
        FieldType::Count { .. } => "a whole number from 1".to_owned(),
        FieldType::Whole { least, most } => format!("a whole number from {least} to {most}"),
        FieldType::Decimal { least, most } => format!("a number {}", decimal_bounds(*least, *most)),
        FieldType::TimeOfDay => "a time of day such as 09:30".to_owned(),
        FieldType::Bool => "true or false".to_owned(),
        FieldType::Duration | FieldType::Timeout { .. } => {
            "a duration such as 500ms, 15s, 10m, 24h or 7d".to_owned()
        }
        FieldType::Size { .. } => "a size such as 64MiB or 1GiB".to_owned(),
        FieldType::Custom(custom) => custom.allowed.to_owned(),
        FieldType::Instant => "an instant such as 2026-01-20T00:00:00+08:00".to_owned(),
        FieldType::Zone => "an IANA time zone such as UTC or Asia/Shanghai".to_owned(),
        FieldType::Section(schema) => describe_schema(schema),
        FieldType::List { element: schema, .. } => {
            format!("a list, each element {}", describe_schema(schema))
        }
        FieldType::Texts => "a list of texts".to_owned(),
        FieldType::Unread { .. } => "a section".to_owned(),
    }
}

/// The name of a schema with its required fields.
fn describe_schema(schema: &MappingSchema) -> String {
    let always = |field: &&FieldSchema| matches!(field.presence, Presence::Always);
    let needed: Vec<_> = schema.fields.iter().filter(always).map(|field| field.name).collect();
    match needed.as_slice() {
        [] => format!(
            "{}, a mapping with fields such as {}",
            schema.what,
            join_or(&schema.names().collect::<Vec<_>>())
        ),
        _ => format!("{}, a mapping with {}", schema.what, join_and(&needed)),
    }
}

/// `a, b or c`.
pub(crate) fn join_or(words: &[&str]) -> String {
    join_words(words, "or")
}

/// `a, b and c`.
fn join_and(words: &[&str]) -> String {
    join_words(words, "and")
}

fn join_words(words: &[&str], last: &str) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., end] => format!("{} {last} {end}", most.join(", ")),
    }
}
