//! Pledges: replies that are written and may not be heard yet, because the store's log is not durable that far.
//!
//! ```text
//!   output   +PONG  *7…  *7…  *7…  +PONG  :1
//!            ready  └─ 3 until 9 ┘  ready  └ 1 until 10
//! ```
//!
//! Whoever has the socket says what is ready, waits, and goes on in order. If the log fails, as many errors are said as there were
//! replies.

use std::ops::Range;

use tidegate::store::{Lsn, Unavailable};

use super::reply::{RespVersion, RespWriter};

/// Replies that stand behind each other in the output and wait for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredReply {
    /// Where in the output.
    pub span: Range<usize>,
    /// How many replies.
    pub replies: usize,
    /// They may be heard when the log is durable up to here.
    pub lsn: Lsn,
}

impl DeferredReply {
    /// Says instead of them that the store cannot answer, once for each.
    pub fn write_errors(&self, error: &Unavailable, protocol: RespVersion, output: &mut Vec<u8>) {
        let mut writer = RespWriter::new(output, protocol);
        for _ in 0..self.replies {
            writer.error("UNAVAILABLE", error);
        }
    }
}

/// What a session says into.
pub(super) struct ReplySink<'o> {
    pub(super) output: &'o mut Vec<u8>,
    pub(super) deferred: Vec<DeferredReply>,
}

impl ReplySink<'_> {
    /// What was said since `start`, so many replies, may be heard when this is durable; if it is not `None`.
    pub(super) fn reply(&mut self, start: usize, replies: usize, lsn: Option<Lsn>) {
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
