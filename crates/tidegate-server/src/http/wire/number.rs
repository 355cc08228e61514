//! Whole numbers with error messages that name the field and the range.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use tidegate_core::order::MAX_WAIT;

/// Parses an optional whole number. Negative, fractional and too large ones are refused with the field's name.
pub(super) fn optional<'de, D: Deserializer<'de>>(
    reader: D,
    field: &'static str,
) -> Result<Option<u64>, D::Error> {
    reader.deserialize_option(OptionalNumber(WholeNumber(field)))
}

/// Visitor for a whole number of this field.
pub(super) struct WholeNumber(pub(super) &'static str);

impl Visitor<'_> for WholeNumber {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "max_wait_ms" => {
                write!(f, "max_wait_ms to be a whole number from 0 to {}", MAX_WAIT.as_millis())
            }
            "ttl_ms" => f.write_str("ttl_ms to be a whole number of milliseconds above 0"),
            field => write!(f, "{field} to be a whole number from 0 to {}", u64::MAX),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }
}

struct OptionalNumber(WholeNumber);

impl<'de> Visitor<'de> for OptionalNumber {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, reader: D) -> Result<Option<u64>, D::Error> {
        reader.deserialize_u64(self.0).map(Some)
    }
}
