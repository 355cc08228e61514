//! Decodes and parses a file, with the checks that apply to every file: size, encoding and control characters.

use std::borrow::Cow;
use std::rc::Rc;

use crate::diagnostic::{DiagnosticSink, Diagnostics};
use crate::source::{ConfigSource, MAX_FILE_BYTES, SourceSpan};
use crate::yaml::{self, YamlNode};

/// Parses a file, YAML or JSON, and passes the tree to `read`. Returns the result of `read` and the warnings.
///
/// The error contains all errors and warnings of the file. A file with any error gives no value, so settings are never partially
/// applied. `read` returns `None` only after it has reported an error. The name of the file is for messages only.
pub fn read_document<T>(
    name: &str,
    bytes: &[u8],
    read: impl FnOnce(&mut DiagnosticSink<'_>, &Rc<YamlNode>) -> Option<T>,
) -> Result<(T, Diagnostics), Diagnostics> {
    let text = decode(name, bytes)?;
    let source = ConfigSource::new(name, &text);
    let mut sink = DiagnosticSink::new(&source);
    let value = parse(&mut sink).and_then(|tree| read(&mut sink, &tree));
    let failed = sink.has_errors();
    match value {
        Some(value) if !failed => Ok((value, sink.into_diagnostics())),
        _ => Err(sink.into_diagnostics()),
    }
}

/// The names of the top-level fields. Empty if the bytes are not a valid mapping.
pub fn field_names(bytes: &[u8]) -> Vec<String> {
    let names = read_document("", bytes, |_, tree| {
        Some(tree.entries().iter().map(|entry| entry.key.clone()).collect())
    });
    names.map(|(names, _)| names).unwrap_or_default()
}

/// Decodes UTF-8. Fails for a large file or another encoding.
fn decode<'b>(name: &str, bytes: &'b [u8]) -> Result<Cow<'b, str>, Diagnostics> {
    let refuse = |text: &str, at: usize, message: String| {
        let source = ConfigSource::new(name, text);
        let mut sink = DiagnosticSink::new(&source);
        sink.error(SourceSpan::at(at), "", message);
        sink.into_diagnostics()
    };
    if bytes.len() > MAX_FILE_BYTES {
        let message = format!("a file must be at most {} MiB, and this one is longer", MAX_FILE_BYTES >> 20);
        return Err(refuse("", 0, message));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.into()),
        Err(error) => {
            let at = error.valid_up_to();
            let message = match bytes {
                [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "this is UTF-16; save the file as UTF-8".to_owned(),
                _ => {
                    format!("must be UTF-8 text, found the byte 0x{:02x}; save the file as UTF-8", bytes[at])
                }
            };
            Err(refuse(&String::from_utf8_lossy(bytes), at, message))
        }
    }
}

/// Parses the text. Control characters are rejected first, because an excerpt cannot show them.
fn parse(sink: &mut DiagnosticSink<'_>) -> Option<Rc<YamlNode>> {
    let text = sink.source().text;
    let is_forbidden = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\r' | '\t' | '\u{85}');
    match text.char_indices().find(|(_, letter)| is_forbidden(*letter)) {
        Some((at, letter)) => {
            let message =
                format!("must not contain control characters, found U+{:04X}; remove it", u32::from(letter));
            sink.error(SourceSpan { start: at, end: at + letter.len_utf8() }, "", message);
            None
        }
        None => yaml::parse(sink),
    }
}
