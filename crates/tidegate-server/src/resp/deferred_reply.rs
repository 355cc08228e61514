//! Deferred replies: already encoded, but not sent before the store's log is durable.
//!
//! ```text
//!   output   +PONG  *7…  *7…  *7…  +PONG  :1
//!            ready  └─ 3 until 9 ┘  ready  └ 1 until 10
//! ```
//!
//! The connection sends what is ready, waits for the log, and goes on in order. If the log fails, each deferred reply is replaced by an
//! error.

use std::ops::Range;

use tidegate::store::{Lsn, Unavailable};

use super::reply::{RespVersion, RespWriter};

/// Consecutive replies in the output that wait for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredReply {
    /// Their bytes in the output.
    pub span: Range<usize>,
    /// The number of replies.
    pub replies: usize,
    /// They may be sent when the log is durable up to here.
    pub lsn: Lsn,
}

impl DeferredReply {
    /// Writes an error for each of these replies.
    pub fn write_errors(&self, error: &Unavailable, protocol: RespVersion, output: &mut Vec<u8>) {
        let mut writer = RespWriter::new(output, protocol);
        for _ in 0..self.replies {
            writer.error("UNAVAILABLE", error);
        }
    }
}

/// The output of a session, with the replies that are deferred.
pub(super) struct ReplySink<'o> {
    pub(super) output: &'o mut Vec<u8>,
    pub(super) deferred: Vec<DeferredReply>,
}

impl ReplySink<'_> {
    /// Defers the replies written since `start` until `lsn` is durable; does nothing without an `lsn`.
    pub(super) fn defer(&mut self, start: usize, replies: usize, lsn: Option<Lsn>) {
        let (Some(lsn), end) = (lsn, self.output.len()) else { return };
        match self.deferred.last_mut() {
            Some(last) if last.span.end == start => {
                last.span.end = end;
                last.replies += replies;
                last.lsn = last.lsn.max(lsn);
            }
            _ => self.deferred.push(DeferredReply { span: start..end, replies, lsn }),
        }
    }
}
