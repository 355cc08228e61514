//! Reads limits: one limit by itself, or the list `limits` of a settings file.
//!
//! A program that embeds the library reads a whole settings file with [`read_file`] or [`read_text`]. The sections
//! of the server are skipped, so one file can serve both. The server reads the same list with [`read_list`] and its own sections beside it.

mod definition;
mod reserved;
mod schema;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use hashbrown::HashMap;
use tidegate_core::LimitSpec;

use crate::diagnostic::{DiagnosticSink, Diagnostics};
use crate::document::read_document;
use crate::mapping_fields::{FieldPath, Mapping, read_mapping};
use crate::source::{MAX_FILE_BYTES, SourceSpan};
use crate::yaml::YamlNode;

pub use reserved::{RESERVED, is_reserved};
pub use schema::LIMIT;

/// Reads the limits of a settings file. Each is valid by itself, and no two have the same id.
///
/// The error contains all diagnostics of the file, and its `Display` shows them all. A file that cannot be opened or read gives the
/// same type of error.
pub fn read_file(path: impl AsRef<Path>) -> Result<Vec<LimitSpec>, Diagnostics> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let bytes = read_bytes(path).map_err(|error| Diagnostics::unreadable(&name, &error))?;
    read_text(&name, &bytes)
}

/// Reads at most one byte more than [`MAX_FILE_BYTES`], which is enough to reject the file.
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the limits of a settings file that is in memory. The name is for messages only.
///
/// ```
/// let text = b"limits: [{id: api, items: [{policy: day, limit: 100}]}]";
/// let limits = tidegate_config::limits::read_text("tidegate.yaml", text).unwrap();
/// assert_eq!(limits[0].id, "api");
/// ```
pub fn read_text(name: &str, bytes: impl AsRef<[u8]>) -> Result<Vec<LimitSpec>, Diagnostics> {
    let limits = read_document(name, bytes.as_ref(), |sink, tree| {
        if tree.is_empty() {
            return Some(Vec::new());
        }
        let mut file = read_mapping(sink, tree, &schema::LIMITS_FILE, &FieldPath::Top);
        Some(read_list(sink, &mut file, tree))
    });
    limits.map(|(limits, _)| limits)
}

/// Reads a text that is one limit, such as the body of a request. Paths in errors are relative to the limit.
pub fn read_limit(name: &str, bytes: &[u8]) -> Result<LimitSpec, Diagnostics> {
    read_document(name, bytes, |sink, tree| read_node(sink, tree)).map(|(limit, _)| limit)
}

/// Reads a parsed document that is one limit.
pub fn read_node(sink: &mut DiagnosticSink<'_>, tree: &YamlNode) -> Option<LimitSpec> {
    let limit = read_mapping(sink, tree, &LIMIT, &FieldPath::Top);
    definition::read_limit(sink, limit, tree, &FieldPath::Top)
}

/// Takes the list `limits` out of a file and reads its elements. `tree` is the file that `file` was read from.
pub fn read_list(sink: &mut DiagnosticSink<'_>, file: &mut Mapping, tree: &YamlNode) -> Vec<LimitSpec> {
    let path = FieldPath::Field(&FieldPath::Top, "limits");
    let mut first_ids = HashMap::new();
    let mut limits = Vec::new();
    for (index, mapping) in file.take_list("limits").unwrap_or_default().into_iter().enumerate() {
        let path = FieldPath::Element(&path, index);
        report_duplicate_id(sink, &mut first_ids, &mapping, &path);
        let node = tree.field("limits").and_then(|list| list.element(index)).unwrap_or(tree);
        limits.extend(definition::read_limit(sink, mapping, node, &path));
    }
    limits
}

/// Reports a limit that has the id of an earlier one.
fn report_duplicate_id(
    sink: &mut DiagnosticSink<'_>,
    first_ids: &mut HashMap<String, SourceSpan>,
    limit: &Mapping,
    path: &FieldPath<'_>,
) {
    let Some((id, span)) = limit.text_and_span("id") else { return };
    let Some(first) = first_ids.get(id) else {
        first_ids.insert(id.to_owned(), span);
        return;
    };
    let (line, _) = sink.source().line_and_column(*first);
    let message = format!("'{id}' is already the id of the limit on line {line}; ids must differ");
    sink.error(span, FieldPath::Field(path, "id"), message);
}
