//! Environment variables in the values of a file: `${env:NAME}` and `${env:NAME:-default}`.
//!
//! ```text
//! ${env:PORT}               the variable; an error if it is not set
//! ${env:PORT:-9848}         the default if it is not set or empty
//! ${env:A:-${env:B:-9848}}  defaults may have variables of their own
//! $${env:PORT}              the text ${env:PORT} itself
//! ```
//!
//! The value of a variable is not expanded again. An expanded value counts as unquoted, so `"${env:PORT}"` can be a number where
//! YAML needs quotes around braces. Names of fields are not expanded.

use std::rc::Rc;

use crate::diagnostic::DiagnosticSink;
use crate::mapping_fields::FieldPath;
use crate::text::quoted;
use crate::yaml::{YamlEntry, YamlKind, YamlNode};

/// Looks up an environment variable.
pub type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// The prefix of a variable.
const VARIABLE_PREFIX: &str = "${env:";
/// The separator between a name and its default.
const DEFAULT_SEPARATOR: &str = ":-";
/// The maximum nesting depth of defaults.
const MAX_DEFAULT_DEPTH: usize = 16;
/// The maximum length of an expanded value in bytes.
const MAX_VALUE_BYTES: usize = 1 << 20;

/// Replaces all variables in a tree. A value that cannot be expanded is reported and marked as broken.
pub fn expand(
    sink: &mut DiagnosticSink<'_>,
    node: &Rc<YamlNode>,
    env: Environment<'_>,
    path: &FieldPath<'_>,
) -> Rc<YamlNode> {
    let kind = match &node.kind {
        YamlKind::Scalar { text, .. } if text.contains(VARIABLE_PREFIX) => match expand_text(text, env, 0) {
            Ok(text) => YamlKind::Scalar { text, plain: true },
            Err(message) => {
                sink.error(node.span, path, message);
                YamlKind::Broken
            }
        },
        YamlKind::List(children) => {
            let children = children.iter().enumerate();
            YamlKind::List(
                children
                    .map(|(index, child)| expand(sink, child, env, &FieldPath::Element(path, index)))
                    .collect(),
            )
        }
        YamlKind::Map(entries) => YamlKind::Map(
            entries
                .iter()
                .map(|entry| YamlEntry {
                    key: entry.key.clone(),
                    key_span: entry.key_span,
                    value: expand(sink, &entry.value, env, &FieldPath::Field(path, &entry.key)),
                })
                .collect(),
        ),
        YamlKind::Scalar { .. } | YamlKind::Empty | YamlKind::Broken => return Rc::clone(node),
    };
    Rc::new(YamlNode::new(node.span, kind))
}

/// Replaces the variables in a text. The error says which variable cannot be replaced.
fn expand_text(text: &str, env: Environment<'_>, depth: usize) -> Result<String, String> {
    if depth > MAX_DEFAULT_DEPTH {
        return Err(format!("defaults must be at most {MAX_DEFAULT_DEPTH} deep inside each other"));
    }
    let mut whole = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(VARIABLE_PREFIX) {
        if rest[..at].ends_with('$') {
            whole.push_str(&rest[..at - 1]);
            whole.push_str(VARIABLE_PREFIX);
            rest = &rest[at + VARIABLE_PREFIX.len()..];
        } else {
            whole.push_str(&rest[..at]);
            let inside = &rest[at + VARIABLE_PREFIX.len()..];
            let end = find_closing_brace(inside).ok_or_else(|| {
                format!("a variable is not closed in {}; write {VARIABLE_PREFIX}NAME{}", quoted(text), '}')
            })?;
            whole.push_str(&expand_variable(&inside[..end], env, depth)?);
            rest = &inside[end + 1..];
        }
        if whole.len() > MAX_VALUE_BYTES {
            return Err(format!("must be at most {MAX_VALUE_BYTES} bytes once its variables are replaced"));
        }
    }
    whole.push_str(rest);
    Ok(whole)
}

/// The offset of the brace that closes a variable. Braces inside its default are balanced.
fn find_closing_brace(inside: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
    }
    None
}

/// The value of `NAME` or `NAME:-default`.
fn expand_variable(inside: &str, env: Environment<'_>, depth: usize) -> Result<String, String> {
    let (name, default) = match inside.split_once(DEFAULT_SEPARATOR) {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if !is_name {
        return Err(format!(
            "the name of a variable must be letters, digits and _, found {}; write {VARIABLE_PREFIX}NAME{DEFAULT_SEPARATOR}default{}",
            quoted(name),
            '}'
        ));
    }
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => expand_text(default, env, depth + 1),
        (None, None) => Err(format!(
            "the variable {name} is not set; set it, or write {VARIABLE_PREFIX}{name}{DEFAULT_SEPARATOR}default{}",
            '}'
        )),
    }
}
