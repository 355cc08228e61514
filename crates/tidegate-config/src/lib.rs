//! Reads settings files: returns valid settings, or a list of all errors.
//!
//! ```text
//! bytes ──▶ document ──▶ yaml ──▶ (env_expansion) ──▶ mapping_fields ──▶ limits, or a section of another crate
//!           UTF-8?       YAML?    ${env:NAME}         valid fields?      valid combination?
//! ```
//!
//! Every error has a line, a column and a path. The reader omits the invalid value and continues; only broken syntax ends the
//! reading early. A file with any error gives no settings, so settings are never partially applied. One static [`MappingSchema`]
//! describes the fields of each mapping, and [`json_schema()`] generates the published schema from it.
//!
//! This crate defines the schema of limits ([`limits`]). The server, the gateway and the CPU governor describe their own sections
//! with the same types. A general deserializer such as serde does not fit: it stops at the first error and loses the positions.
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
mod mapping_fields;
pub mod schema;
mod source;
pub mod text;
mod yaml;

pub use diagnostic::{Color, Diagnostic, DiagnosticSink, Diagnostics, MAX_DIAGNOSTICS, Severity};
pub use document::{field_names, read_document};
pub use env_expansion::{Environment, expand};
pub use json_schema::json_schema;
pub use mapping_fields::{FieldPath, Mapping, read_mapping};
pub use schema::MappingSchema;
pub use source::{ConfigSource, MAX_FILE_BYTES, SourceExcerpt, SourceSpan};
pub use yaml::YamlNode;
