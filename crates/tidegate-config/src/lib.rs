//! Settings files: from bytes to values that are known to make sense, or to a list of all mistakes.
//!
//! ```text
//! bytes ──▶ document ──▶ yaml ──▶ (env_expansion) ──▶ mapping ──▶ limits, or a section of another crate
//!           is it        is it    ${env:NAME}         is each      do the values
//!           text?        YAML?                        field        fit together?
//!                                                     allowed?
//! ```
//!
//! A reader reports every mistake with its line, its column and its path, leaves the value out, and goes on. Only broken syntax
//! ends the reading early. A file with any error gives no settings, so nothing is half applied. The fields of a mapping are
//! described by one static [`MappingSchema`], from which [`json_schema()`] makes the published schema too.
//!
//! This crate knows limits ([`limits`]). The server, the gateway and the CPU governor describe their own sections with the same
//! types. A general deserializer such as serde was refused: it stops at the first error and loses the positions.
//!
//! ```
//! use tidegate_config::limits;
//!
//! let text = b"limits: [{id: api, items: [{policy: day, limit: 100}]}]";
//! assert_eq!(limits::read_text("tidegate.yaml", text).unwrap()[0].id, "api");
//!
//! let text = b"limits: [{id: api, items: [{policy: dya, limit: 1.5}]}]";
//! assert_eq!(limits::read_text("tidegate.yaml", text).unwrap_err().errors(), 2);
//! ```

mod diagnostic;
mod document;
mod env_expansion;
mod json_schema;
pub mod limits;
pub mod schema;
mod source;
pub mod text;
mod yaml;
mod yaml_mapping;

pub use diagnostic::{Color, Diagnostic, DiagnosticSink, Diagnostics, MOST_DIAGNOSTICS, Severity};
pub use document::{field_names, read_document};
pub use env_expansion::{Environment, expand};
pub use json_schema::json_schema;
pub use schema::MappingSchema;
pub use source::{ConfigSource, LARGEST_FILE, SourceExcerpt, SourceSpan};
pub use yaml::YamlNode;
pub use yaml_mapping::{FieldPath, Mapping, read_mapping};
