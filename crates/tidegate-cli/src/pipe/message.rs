//! What a line says about itself: whose it is, and when it was sent.

use std::borrow::Cow;

use tidegate::Timestamp;
use tidegate_core::limit::LONGEST_KEY;

use crate::args::FieldPath;
use crate::lines::LONGEST_LINE;
use crate::{instant, json};

/// Who sent a message that does not say.
const UNKNOWN_USER: &[u8] = b"unknown_user";

/// Where messages say whose they are, and when they were sent.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) key: FieldPath,
    pub(super) time: Option<FieldPath>,
}

/// A message, as far as the limits are concerned.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) key: Cow<'a, [u8]>,
    /// When it was sent; the epoch unless that was to be read.
    pub(super) at: Timestamp,
}

/// Reads messages.
#[derive(Debug)]
pub(super) struct Reader {
    paths: Paths,
    instants: instant::Reader,
}

impl Reader {
    pub(super) fn new(paths: Paths) -> Reader {
        Reader { paths, instants: instant::Reader::default() }
    }

    /// The message on a line; `None` if it is not JSON, has no time where one is needed, or its key is too long. Of
    /// fields that are written twice the last counts, as for most readers of JSON.
    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Option<Message<'a>> {
        if line.len() > LONGEST_LINE {
            return None;
        }
        let line = std::str::from_utf8(line).ok()?;
        let Paths { key: key_path, time: time_path } = &self.paths;
        let (mut key, mut time) = (None, None);
        json::fields(line, |name, value| {
            if name == key_path.first {
                key = Some(value);
            }
            if time_path.as_ref().is_some_and(|path| name == path.first) {
                time = Some(value);
            }
        })
        .ok()?;
        let at = match time_path {
            Some(path) => self.instants.read(follow(time, &path.rest)?).ok()?,
            None => Timestamp::EPOCH,
        };
        Some(Message { key: whose(follow(key, &key_path.rest))?, at })
    }
}

/// The value behind the rest of a path.
fn follow<'a>(value: Option<&'a str>, path: &[String]) -> Option<&'a str> {
    path.iter().try_fold(value?, |object, wanted| {
        let mut found = None;
        // It is a part of JSON that was read before, so it can only be no object.
        let _is_object = json::fields(object, |name, value| {
            if name == wanted {
                found = Some(value);
            }
        });
        found
    })
}

/// The key that a value stands for; `None` if it is too long, or no text.
fn whose(value: Option<&str>) -> Option<Cow<'_, [u8]>> {
    let key = match value {
        None | Some("null") => Cow::Borrowed(UNKNOWN_USER),
        Some(value) if value.starts_with('"') => match json::text(value)? {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        },
        Some(value) => Cow::Borrowed(value.as_bytes()),
    };
    (key.len() <= LONGEST_KEY).then_some(key)
}
