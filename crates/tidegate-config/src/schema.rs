//! The schema of a mapping: which fields it may have, and what each value looks like.
//!
//! A subsystem describes each of its sections as one static [`MappingSchema`]. The reader ([`Mapping`](crate::Mapping)) and the
//! published JSON Schema ([`json_schema`](crate::json_schema())) both work from it, so neither can know a field that the other
//! does not. A schema judges one value at a time. Whether values fit together is for the subsystem to check.

use std::time::Duration;

use serde_json::Value;

/// The longest wait that a [`FieldType::Timeout`] accepts: one day.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);

/// The fields of one kind of mapping.
pub struct MappingSchema {
    /// The word for it. If the mapping is the element of a list, this is also the name of its definition in the JSON Schema.
    pub name: &'static str,
    /// The same with its article, for messages: `a limit`.
    pub what: &'static str,
    /// The fields, in the order in which messages list them.
    pub fields: &'static [FieldSchema],
}

/// One field of a mapping.
pub struct FieldSchema {
    /// The key in the file.
    pub name: &'static str,
    /// What its value looks like.
    pub value: FieldType,
    /// Whether it must be written.
    pub presence: Presence,
    /// The description in the published schema.
    pub about: &'static str,
}

/// What the value of a field looks like.
pub enum FieldType {
    /// Any text. A plain number is its text.
    Text,
    /// A text of 1 to 256 letters, digits and `. _ : / -`.
    Name,
    /// One of these words.
    Word(fn() -> Vec<&'static str>),
    /// `-1`, `0`, or a whole number above.
    Limit,
    /// A whole number from 1. The advice is shown when the number is below.
    Count {
        /// The largest number.
        most: u64,
        /// What to write instead of 0.
        advice: &'static str,
    },
    /// A whole number within bounds.
    Whole {
        /// The smallest number.
        least: u64,
        /// The largest number.
        most: u64,
    },
    /// A number with up to nine decimals, within bounds in billionths.
    Decimal {
        /// The smallest number.
        least: u64,
        /// The largest number.
        most: u64,
    },
    /// A time of day, `09:30`.
    TimeOfDay,
    /// `true` or `false`.
    Bool,
    /// `500ms`, `15s`, `10m`, `24h`, `7d`.
    Duration,
    /// A duration of at most [`LONGEST_TIMEOUT`].
    Timeout {
        /// The shortest wait.
        least: Duration,
    },
    /// A size such as `64MiB`.
    Size {
        /// The smallest size in bytes.
        least: u64,
    },
    /// RFC 3339 with an offset.
    Instant,
    /// An IANA time zone.
    Zone,
    /// A scalar with a grammar of its own.
    Custom(&'static CustomType),
    /// A list of texts.
    Texts,
    /// A list of mappings.
    List {
        /// The schema of an element.
        element: &'static MappingSchema,
        /// How many elements the JSON Schema demands. The reader does not check it.
        least: usize,
    },
    /// A mapping.
    Section(&'static MappingSchema),
    /// Any value; it is skipped, and a warning says why.
    Unread {
        /// The text of the warning.
        warning: &'static str,
    },
}

/// A scalar type that a subsystem adds.
///
/// The reader checks the text and keeps it; [`Mapping::take_text`](crate::Mapping::take_text) returns it for parsing.
pub struct CustomType {
    /// Checks the text of a value; `plain` tells whether it was written without quotes. An error says what is wrong and what to do.
    pub check: fn(text: &str, plain: bool) -> Result<(), String>,
    /// What the value may be, with its article, for messages: `an address such as 127.0.0.1:7700, or off`.
    pub allowed: &'static str,
    /// Its JSON Schema.
    pub json_schema: fn() -> Value,
}

/// Whether and where a field must be written.
pub enum Presence {
    /// It must be written.
    Always,
    /// It may be left out.
    Optional,
    /// Only where the field `policy` has one of these words, and there always.
    AlwaysIn(&'static [&'static str]),
    /// Only where the field `policy` has one of these words.
    OptionalIn(&'static [&'static str]),
}

impl MappingSchema {
    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&'static FieldSchema> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|field| field.name)
    }
}

impl FieldSchema {
    /// The policies that have this field, or `None` if all have it.
    pub const fn policies(&self) -> Option<&'static [&'static str]> {
        match self.presence {
            Presence::AlwaysIn(policies) | Presence::OptionalIn(policies) => Some(policies),
            Presence::Always | Presence::Optional => None,
        }
    }
}

/// Makes a field.
pub const fn field(
    name: &'static str,
    value: FieldType,
    presence: Presence,
    about: &'static str,
) -> FieldSchema {
    FieldSchema { name, value, presence, about }
}
