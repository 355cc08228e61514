//! A cache of frame prefixes that a connection sends repeatedly.
//!
//! ```text
//!   *3\r\n$10\r\nTG.ACQUIRE\r\n$5\r\nlogin\r\n$   3\r\nada\r\n
//!   └────────────── the prefix ──────────────┘   └ the key ┘
//! ```
//!
//! A busy client asks the same limit again and again, and all bytes of the frame before the key are the same each time. Once such a
//! frame is parsed and authorized, the next one with the same prefix means the same command and limit. Only the key and the count
//! remain to be read.
//!
//! Any other bytes (another case, a request id, a partial frame, an unusual number) go through the normal parser. So this path reports
//! no errors of its own.
//!
//! The cache is cleared when the connection's permissions change.

use tidegate::model::Amount;
use tidegate::store::CompactRequest;
use tidegate::store::compact::MOST_LIMITS;

use super::frame::{FrameArguments, LINE_END, parse_number, read_short_number};

/// Longer prefixes are not cached: the memory belongs to the connection.
const MAX_PREFIX_BYTES: usize = 160;
/// Longer counts go through the normal parser.
const MAX_COUNT_DIGITS: usize = 18;

/// The cached prefixes of one connection.
#[derive(Debug, Default)]
pub(super) struct FramePrefixCache {
    prefixes: Vec<FramePrefix>,
    /// Index of the prefix that is replaced next.
    next_replaced: usize,
}

#[derive(Debug)]
struct FramePrefix {
    /// All bytes before the length of the key.
    bytes: Box<[u8]>,
    /// Start of the limit id; it ends before the last line end and `$`.
    id: usize,
    has_count: bool,
}

/// Limit ids by prefix, borrowed from the input. Empty for unused prefixes.
pub(super) type LimitIds<'i> = [&'i str; MOST_LIMITS];

impl FramePrefixCache {
    /// Forgets all prefixes.
    pub(super) fn clear(&mut self) {
        self.prefixes.clear();
    }

    /// Reads frames with a cached prefix as long as they are whole, up to `max` requests. Returns how many bytes they take.
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

    /// The prefix that a frame begins with; most frames repeat the last one.
    #[inline]
    fn find(&self, rest: &[u8], last: usize) -> Option<(usize, &FramePrefix)> {
        let matches = |prefix: &FramePrefix| rest.starts_with(&prefix.bytes);
        match self.prefixes.get(last) {
            Some(prefix) if matches(prefix) => Some((last, prefix)),
            _ => self.prefixes.iter().enumerate().find(|(_, prefix)| matches(prefix)),
        }
    }

    /// Caches the prefix of a plain acquire frame and returns its index. `None` if there is no room. While requests are pending, no
    /// prefix is replaced, because they refer to it.
    pub(super) fn add_limit(
        &mut self,
        rest: &[u8],
        arguments: &FrameArguments<'_, '_>,
        has_pending: bool,
    ) -> Option<usize> {
        let (id, end) = arguments.span(1)?;
        // Includes the line end after the id and the `$` of the key's length.
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
    /// Length, key and count of the frame; `None` if it is not in the common form.
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

/// The bulk string at this position, and where it ends.
#[inline]
fn read_bulk(rest: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let (length, start) = read_short_number(rest, b'$', at)?;
    let text = rest.get(start..start + length + LINE_END.len())?;
    let (bulk, end) = text.split_at(length);
    (end == LINE_END).then_some((bulk, start + length + LINE_END.len()))
}
