//! FramePrefixCache: how frames begin that a connection sends again and again.
//!
//! ```text
//!   *3\r\n$10\r\nTG.ACQUIRE\r\n$5\r\nlogin\r\n$   3\r\nada\r\n
//!   └────────────── the prefix ─────────────┘   └ the key ┘
//! ```
//!
//! A program that asks often asks the same limit again and again, and all of the frame but the key is the same bytes each time. Once such a
//! frame was read and understood in full, the next one that begins alike is known to say the same: this command, of this limit, by somebody
//! who may. What is left to read is the key, and the count if there is one.
//!
//! Decided: whatever is not byte for byte like that (another case of the letters, a request id, half a frame, a number that is written
//! oddly) is read as every frame is. So this has no faults of its own to tell.
//!
//! Decided: an prefix is forgotten when it may mean something else by now: whenever the connection's pass changes.

use tidegate::Amount;
use tidegate::store::CompactRequest;
use tidegate::store::bid::MOST_LIMITS;

use super::frame::{FrameArguments, LINE_END, parse_number, read_short_number};

/// Longer ones are not pending_input: they are the connection's own memory for as long as it lasts.
const MAX_PREFIX_BYTES: usize = 160;
/// A count that is longer is read as every frame is.
const MAX_COUNT_DIGITS: usize = 18;

/// The openings of one connection.
#[derive(Debug, Default)]
pub(super) struct FramePrefixCache {
    prefixes: Vec<FramePrefix>,
    /// Which one is replaced next.
    next_replaced: usize,
}

#[derive(Debug)]
struct FramePrefix {
    /// Everything before the length of the key.
    bytes: Box<[u8]>,
    /// Where the limit's id begins in it; it ends before a line end and a dollar.
    id: usize,
    has_count: bool,
}

/// The ids of the limits of openings, where they were read. Empty for those that were not used.
pub(super) type LimitIds<'i> = [&'i str; MOST_LIMITS];

impl FramePrefixCache {
    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.prefixes.clear();
    }

    /// Reads frames that begin with one of them, as long as they come whole and until there are so many requests. How many bytes they take.
    pub(super) fn read_matching<'i>(
        &self,
        input: &'i [u8],
        requests: &mut Vec<CompactRequest<'i>>,
        limit_ids: &mut LimitIds<'i>,
        max: usize,
    ) -> usize {
        let (mut done, mut last) = (0, 0);
        while requests.len() < max {
            let rest = &input[done..];
            let Some((limit, prefix)) = self.find(rest, last) else { break };
            let Some((length, key, count)) = prefix.read(rest) else { break };
            if limit_ids[limit].is_empty() {
                limit_ids[limit] = prefix.limit_id(rest);
            }
            requests.push(CompactRequest { limit, key, count });
            last = limit;
            done += length;
        }
        done
    }

    /// The prefix of a frame; max are like the last.
    #[inline]
    fn find(&self, rest: &[u8], last: usize) -> Option<(usize, &FramePrefix)> {
        let matches = |prefix: &FramePrefix| rest.starts_with(&prefix.bytes);
        match self.prefixes.get(last) {
            Some(prefix) if matches(prefix) => Some((last, prefix)),
            _ => self.prefixes.iter().enumerate().find(|(_, prefix)| matches(prefix)),
        }
    }

    /// Learns the prefix of a frame that asks for some of a limit and nothing else. Where it is now; `None` if there is no room
    /// for it. While requests are `has_pending`, nothing that they may have begun with is replaced.
    pub(super) fn learn(
        &mut self,
        rest: &[u8],
        arguments: &FrameArguments<'_, '_>,
        has_pending: bool,
    ) -> Option<usize> {
        let (id, end) = arguments.span(1)?;
        // Behind the id: the end of its line, and what the key's length begins with.
        let end = end + LINE_END.len() + 1;
        let bytes: Box<[u8]> = rest.get(..end).filter(|_| end <= MAX_PREFIX_BYTES)?.into();
        let prefix = FramePrefix { bytes, id, has_count: arguments.len() == 4 };
        if self.prefixes.len() < MOST_LIMITS {
            self.prefixes.push(prefix);
            return Some(self.prefixes.len() - 1);
        }
        if has_pending {
            return None;
        }
        let slot = self.next_replaced % MOST_LIMITS;
        self.next_replaced = slot + 1;
        self.prefixes[slot] = prefix;
        Some(slot)
    }
}

impl FramePrefix {
    /// The length of the frame, its key and its count; `None` if it is not plainly there.
    #[inline]
    fn read<'i>(&self, rest: &'i [u8]) -> Option<(usize, &'i [u8], Amount)> {
        let (key, at) = read_bulk(rest, self.bytes.len() - 1)?;
        if !self.has_count {
            return Some((at, key, 1));
        }
        let (count, at) = read_bulk(rest, at)?;
        let count = parse_number(count).filter(|_| count.len() <= MAX_COUNT_DIGITS)?;
        Some((at, key, count))
    }

    fn limit_id<'i>(&self, rest: &'i [u8]) -> &'i str {
        let end = self.bytes.len() - 1 - LINE_END.len();
        rest.get(self.id..end).and_then(|id| std::str::from_utf8(id).ok()).unwrap_or_default()
    }
}

/// The bulk string that begins here, and where it ends.
#[inline]
fn read_bulk(rest: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let (length, start) = read_short_number(rest, b'$', at)?;
    let text = rest.get(start..start + length + LINE_END.len())?;
    let (bulk, end) = text.split_at(length);
    (end == LINE_END).then_some((bulk, start + length + LINE_END.len()))
}
