//! What a line says about itself: whose it is, and when it was sent.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

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

    /// The message on a line, or why it cannot be judged: it is not JSON, or has no time where one is needed. Of fields
    /// that are written twice the last counts, as for most readers of JSON.
    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Result<Message<'a>, String> {
        if line.len() > LONGEST_LINE {
            return Err(too_long());
        }
        let line = std::str::from_utf8(line)
            .map_err(|error| format!("is not UTF-8 text from column {}", error.valid_up_to() + 1))?;
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
        .map_err(|why| format!("is not JSON: {why}"))?;
        let at = match time_path {
            Some(path) => {
                let time = follow(time, &path.rest).ok_or_else(|| format!("{path}: is missing"))?;
                self.instants.read(time).map_err(|why| format!("{path}: {why}"))?
            }
            None => Timestamp::EPOCH,
        };
        let key = whose(follow(key, &key_path.rest));
        Ok(Message { key: key.ok_or_else(|| format!("{key_path}: has an escape that is no character"))?, at })
    }
}

/// Why a line was not looked at.
pub(super) fn too_long() -> String {
    format!("is longer than {} MiB", LONGEST_LINE >> 20)
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

/// The key that a value stands for; `None` if it is no text.
fn whose(value: Option<&str>) -> Option<Cow<'_, [u8]>> {
    let key = match value {
        None | Some("null") => Cow::Borrowed(UNKNOWN_USER),
        Some(value) if value.starts_with('"') => match json::text(value)? {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        },
        Some(value) => Cow::Borrowed(value.as_bytes()),
    };
    Some(if key.len() <= LONGEST_KEY { key } else { Cow::Owned(digest(&key)) })
}

/// Stands for a key that is longer than a store would take: its beginning, and a fingerprint of all of it that nobody
/// outside this process can foresee. A user with a long name is a user like any other.
fn digest(key: &[u8]) -> Vec<u8> {
    static HASHERS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    let mut short = key[..LONGEST_KEY - 16].to_vec();
    for hasher in &*HASHERS {
        short.extend_from_slice(&hasher.hash_one(key).to_le_bytes());
    }
    short
}
