//! Schemas of mappings: the names of fields and the types of their values.
//!
//! A subsystem describes each of its sections as one static [`MappingSchema`]. The reader ([`Mapping`](crate::Mapping)) and the
//! published JSON Schema ([`json_schema`](crate::json_schema())) both use it, so they always agree on the fields. A schema
//! validates each value by itself. The subsystem validates combinations of values.

use std::time::Duration;

use serde_json::Value;

/// The maximum of a [`FieldType::Timeout`]: one day.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// The schema of a mapping.
pub struct MappingSchema {
    /// The name. For elements of lists, this is also the name of the definition in the JSON Schema.
    pub name: &'static str,
    /// The name with its article, for messages: `a limit`.
    pub what: &'static str,
    /// The fields, in the order in which messages list them.
    pub fields: &'static [FieldSchema],
}

/// One field of a mapping.
pub struct FieldSchema {
    /// The key in the file.
    pub name: &'static str,
    /// The type of the value.
    pub value: FieldType,
    /// Whether the field is required.
    pub presence: Presence,
    /// The description in the published schema.
    pub about: &'static str,
}

/// The type of a value.
pub enum FieldType {
    /// Any text. A plain number is its text.
    Text,
    /// A text of 1 to 256 letters, digits and `. _ : / -`.
    Name,
    /// One of these words.
    Word(fn() -> Vec<&'static str>),
    /// `-1`, `0`, or a larger whole number.
    Limit,
    /// A whole number from 1.
    Count {
        /// The largest number.
        most: u64,
        /// What to write instead of 0, for messages.
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
    /// A duration of at most [`MAX_TIMEOUT`].
    Timeout {
        /// The minimum.
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
    /// A scalar that a subsystem parses.
    Custom(&'static CustomType),
    /// A list of texts.
    Texts,
    /// A list of mappings.
    List {
        /// The schema of an element.
        element: &'static MappingSchema,
        /// The minimum number of elements in the JSON Schema. The reader does not check it.
        least: usize,
    },
    /// A mapping.
    Section(&'static MappingSchema),
    /// Any value. It is skipped with a warning.
    Unread {
        /// The text of the warning.
        warning: &'static str,
    },
}

/// A scalar type that a subsystem adds.
///
/// The reader checks the text and keeps it; [`Mapping::take_text`](crate::Mapping::take_text) returns it for parsing.
pub struct CustomType {
    /// Checks the text of a value. `plain` is true for an unquoted scalar. The error says what is wrong and what to do.
    pub check: fn(text: &str, plain: bool) -> Result<(), String>,
    /// A description of the valid values with its article, for messages: `an address such as 127.0.0.1:7700, or off`.
    pub allowed: &'static str,
    /// Its JSON Schema.
    pub json_schema: fn() -> Value,
}

/// Whether a field is required or allowed.
pub enum Presence {
    /// Required.
    Always,
    /// Optional.
    Optional,
    /// Required if the field `policy` has one of these words; otherwise not allowed.
    AlwaysIn(&'static [&'static str]),
    /// Optional if the field `policy` has one of these words; otherwise not allowed.
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
    /// The policies with this field. `None` if the field does not depend on the policy.
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
