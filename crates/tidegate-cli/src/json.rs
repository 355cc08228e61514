//! A minimal JSON reader: the fields of one object as slices of the line.
//!
//! Values are not converted, so numbers keep all digits and echoes are exact. The whole line is validated all the
//! same.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Why and where a line is not JSON.
pub(crate) type JsonError = String;

/// Calls `on_field` with the name and the raw value of every field of the object. Returns `false` if the line is JSON
/// but not an object.
pub(crate) fn fields<'a>(line: &'a str, on_field: impl FnMut(&str, &'a str)) -> Result<bool, JsonError> {
    // Without the line end, so that columns are those of the line.
    let line = line.trim_ascii_end();
    let is_object = line.trim_ascii_start().starts_with('{');
    let mut reader = serde_json::Deserializer::from_str(line);
    let read = if is_object {
        reader.deserialize_map(FieldVisitor { on_field })
    } else {
        serde::Deserialize::deserialize(&mut reader).map(|IgnoredAny| ())
    };
    read.and_then(|()| reader.end()).map(|()| is_object).map_err(|error| json_error(&error))
}

/// The text of a JSON string; `None` if the value is not a string or has an invalid escape.
pub(crate) fn text(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    match memchr::memchr(b'\\', inner.as_bytes()) {
        None => Some(Cow::Borrowed(inner)),
        Some(_) => serde_json::from_str(json).ok().map(Cow::Owned),
    }
}

/// The kind of a JSON value, for messages.
pub(crate) fn kind(json: &str) -> &'static str {
    match json.as_bytes().first() {
        Some(b'"') => "text",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b't') => "true",
        Some(b'f') => "false",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// The column of an error. The caller knows the line number.
fn json_error(error: &serde_json::Error) -> JsonError {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("{what} at column {}", error.column())
}

struct FieldVisitor<F> {
    on_field: F,
}

impl<'a, F: FnMut(&str, &'a str)> Visitor<'a> for FieldVisitor<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(FieldName)? {
            let value: &'a RawValue = map.next_value()?;
            (self.on_field)(&name, value.get());
        }
        Ok(())
    }
}

/// A field name, borrowed if it has no escapes.
struct FieldName;

impl<'a> DeserializeSeed<'a> for FieldName {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Cow<'a, str>, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for FieldName {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_borrowed_str<E>(self, name: &'a str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}
