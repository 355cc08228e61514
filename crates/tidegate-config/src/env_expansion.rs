//! Variables of the environment inside the values of a file: `${env:NAME}` and `${env:NAME:-default}`.
//!
//! ```text
//! ${env:PORT}               the variable; an error if it is not set
//! ${env:PORT:-9848}         the default if it is not set, or set to nothing
//! ${env:A:-${env:B:-9848}}  defaults may have variables of their own
//! $${env:PORT}              the text ${env:PORT} itself
//! ```
//!
//! Decided: what a variable says is taken as it is, and not looked at for variables again. A value in which something was expanded
//! is read as if it were written without quotes, so that `"${env:PORT}"` can be a number where braces need quotes. Names of fields are
//! not expanded.

use std::rc::Rc;

use crate::diagnostic::DiagnosticSink;
use crate::yaml_mapping::FieldPath;
use crate::text::quoted;
use crate::yaml::{YamlEntry, YamlKind, YamlNode};

/// Who knows the environment.
pub type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// What begins a variable.
const OPENING: &str = "${env:";
/// What stands between a name and its default.
const OTHERWISE: &str = ":-";
/// How deep defaults may be inside defaults.
const DEEPEST: usize = 16;
/// The longest text that a value may become.
const LONGEST_VALUE: usize = 1 << 20;

/// The same tree with every variable replaced; what cannot be replaced is reported and broken.
pub fn expand(
    sink: &mut DiagnosticSink<'_>,
    node: &Rc<YamlNode>,
    env: Environment<'_>,
    path: &FieldPath<'_>,
) -> Rc<YamlNode> {
    let kind = match &node.kind {
        YamlKind::Scalar { text, .. } if text.contains(OPENING) => match expanded(text, env, 0) {
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

/// A text with its variables replaced, or why one cannot be.
fn expanded(text: &str, env: Environment<'_>, depth: usize) -> Result<String, String> {
    if depth > DEEPEST {
        return Err(format!("defaults must be at most {DEEPEST} deep inside each other"));
    }
    let mut whole = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(OPENING) {
        if rest[..at].ends_with('$') {
            whole.push_str(&rest[..at - 1]);
            whole.push_str(OPENING);
            rest = &rest[at + OPENING.len()..];
        } else {
            whole.push_str(&rest[..at]);
            let inside = &rest[at + OPENING.len()..];
            let end = closing(inside).ok_or_else(|| {
                format!("a variable is not closed in {}; write {OPENING}NAME{}", quoted(text), '}')
            })?;
            whole.push_str(&value(&inside[..end], env, depth)?);
            rest = &inside[end + 1..];
        }
        if whole.len() > LONGEST_VALUE {
            return Err(format!("must be at most {LONGEST_VALUE} bytes once its variables are replaced"));
        }
    }
    whole.push_str(rest);
    Ok(whole)
}

/// Where the brace is that closes a variable; those inside its default are closed before.
fn closing(inside: &str) -> Option<usize> {
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

/// What `NAME` or `NAME:-default` stands for.
fn value(inside: &str, env: Environment<'_>, depth: usize) -> Result<String, String> {
    let (name, default) = match inside.split_once(OTHERWISE) {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if !is_name {
        return Err(format!(
            "the name of a variable must be letters, digits and _, found {}; write {OPENING}NAME{OTHERWISE}default{}",
            quoted(name),
            '}'
        ));
    }
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => expanded(default, env, depth + 1),
        (None, None) => Err(format!(
            "the variable {name} is not set; set it, or write {OPENING}{name}{OTHERWISE}default{}",
            '}'
        )),
    }
}
