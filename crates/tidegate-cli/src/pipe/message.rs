//! Parses the user and the time of a message.

use std::borrow::Cow;

use tidegate::model::Timestamp;
use tidegate::stream::User;

use crate::args::MessagePath;
use crate::lines::LONGEST_LINE;
use crate::{instant, json};

/// Paths of user and time.
#[derive(Debug)]
pub(super) struct FieldPaths {
    pub(super) key: MessagePath,
    pub(super) time: Option<MessagePath>,
}

/// User and time of a message.
#[derive(Debug)]
pub(super) struct PipeMessage<'a> {
    pub(super) user: User<'a>,
    /// Time of the message; 1970 unless a time field is given.
    pub(super) at: Timestamp,
}

/// Parses messages.
#[derive(Debug)]
pub(super) struct MessageReader {
    paths: FieldPaths,
    instants: instant::InstantReader,
}

impl MessageReader {
    pub(super) fn new(paths: FieldPaths) -> MessageReader {
        MessageReader { paths, instants: instant::InstantReader::default() }
    }

    /// Parses a line, or explains why it is an error. Of duplicate fields the last counts, as in most JSON readers.
    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Result<PipeMessage<'a>, String> {
        if line.len() > LONGEST_LINE {
            return Err(too_long());
        }
        let line = std::str::from_utf8(line)
            .map_err(|error| format!("is not UTF-8 text from column {}", error.valid_up_to() + 1))?;
        let FieldPaths { key: key_path, time: time_path } = &self.paths;
        let (mut key, mut time) = (None, None);
        json::fields(line, |name, value| {
            if name == key_path.first {
                key = Some(value);
            }
            if time_path.as_ref().is_some_and(|path| name == path.first) {
                time = Some(value);
            }
        })
        .map_err(|why| format!("is not JSON: {why}"))?;
        let at = match time_path {
            Some(path) => {
                let time = value_at(time, &path.rest).ok_or_else(|| format!("{path}: is missing"))?;
                self.instants.read(time).map_err(|why| format!("{path}: {why}"))?
            }
            None => Timestamp::EPOCH,
        };
        let user = user_of(value_at(key, &key_path.rest));
        Ok(PipeMessage {
            user: user.ok_or_else(|| format!("{key_path}: has an escape that is no character"))?,
            at,
        })
    }
}

/// The error of an overlong line.
pub(super) fn too_long() -> String {
    format!("is longer than {} MiB", LONGEST_LINE >> 20)
}

/// Follows the rest of a path.
fn value_at<'a>(value: Option<&'a str>, path: &[String]) -> Option<&'a str> {
    path.iter().try_fold(value?, |object, wanted| {
        let mut found = None;
        // The value was validated before; a value that is no object has no such field.
        let _is_object = json::fields(object, |name, value| {
            if name == wanted {
                found = Some(value);
            }
        });
        found
    })
}

/// The user of a value; `None` if it has an invalid escape.
fn user_of(value: Option<&str>) -> Option<User<'_>> {
    let name = match value {
        None | Some("null") => return Some(None::<&str>.into()),
        Some(value) if value.starts_with('"') => json::text(value)?,
        Some(value) => Cow::Borrowed(value),
    };
    Some(match name {
        Cow::Borrowed(name) => name.into(),
        Cow::Owned(name) => name.into(),
    })
}
