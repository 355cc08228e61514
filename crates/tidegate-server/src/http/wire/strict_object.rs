//! Nested objects: serde would accept arrays for structs.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A value that must be a JSON object, not an array.
#[derive(Debug)]
pub(super) struct StrictObject<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for StrictObject<T> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<StrictObject<T>, D::Error> {
        reader.deserialize_map(StrictObjectVisitor(PhantomData))
    }
}

struct StrictObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for StrictObjectVisitor<T> {
    type Value = StrictObject<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<StrictObject<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(StrictObject)
    }
}
