//! Openings: how frames begin that a connection sends again and again.
//!
//! ```text
//!   *3\r\n$10\r\nTG.ACQUIRE\r\n$5\r\nlogin\r\n$   3\r\nada\r\n
//!   └────────────── the opening ─────────────┘   └ the key ┘
//! ```
//!
//! A program that asks often asks the same limit again and again, and all of the frame but the key is the same bytes each time. Once such a
//! frame was read and understood in full, the next one that begins alike is known to say the same: this command, of this limit, by somebody
//! who may. What is left to read is the key, and the count if there is one.
//!
//! Decided: whatever is not byte for byte like that (another case of the letters, a request id, half a frame, a number that is written
//! oddly) is read as every frame is. So this has no faults of its own to tell.
//!
//! Decided: an opening is forgotten when it may mean something else by now: whenever the connection's pass changes.

use tidegate::Amount;
use tidegate::store::CompactRequest;
use tidegate::store::bid::MOST_LIMITS;

use super::frame::{Arguments, LINE_END, number, short_number};

/// Longer ones are not kept: they are the connection's own memory for as long as it lasts.
const LONGEST: usize = 160;
/// A count that is longer is read as every frame is.
const LONGEST_COUNT: usize = 18;

/// The openings of one connection.
#[derive(Debug, Default)]
pub(super) struct Openings {
    list: Vec<Opening>,
    /// Which one is replaced next.
    hand: usize,
}

#[derive(Debug)]
struct Opening {
    /// Everything before the length of the key.
    bytes: Box<[u8]>,
    /// Where the limit's id begins in it; it ends before a line end and a dollar.
    id: usize,
    has_count: bool,
}

/// The ids of the limits of openings, where they were read. Empty for those that were not used.
pub(super) type LimitIds<'i> = [&'i str; MOST_LIMITS];

impl Openings {
    /// Forgets all of them.
    pub(super) fn forget(&mut self) {
        self.list.clear();
    }

    /// Reads frames that begin with one of them, as long as they come whole and until there are so many bids. How many bytes they take.
    pub(super) fn gather<'i>(
        &self,
        input: &'i [u8],
        bids: &mut Vec<CompactRequest<'i>>,
        limit_ids: &mut LimitIds<'i>,
        most: usize,
    ) -> usize {
        let (mut done, mut last) = (0, 0);
        while bids.len() < most {
            let rest = &input[done..];
            let Some((limit, opening)) = self.find(rest, last) else { break };
            let Some((length, key, count)) = opening.read(rest) else { break };
            if limit_ids[limit].is_empty() {
                limit_ids[limit] = opening.limit_id(rest);
            }
            bids.push(CompactRequest { limit, key, count });
            last = limit;
            done += length;
        }
        done
    }

    /// The opening of a frame; most are like the last.
    #[inline]
    fn find(&self, rest: &[u8], last: usize) -> Option<(usize, &Opening)> {
        let opens = |opening: &Opening| rest.starts_with(&opening.bytes);
        match self.list.get(last) {
            Some(opening) if opens(opening) => Some((last, opening)),
            _ => self.list.iter().enumerate().find(|(_, opening)| opens(opening)),
        }
    }

    /// Learns the opening of a frame that asks for some of a limit and nothing else. Where it is now; `None` if there is no room
    /// for it. While bids are `pending`, nothing that they may have begun with is replaced.
    pub(super) fn learn(
        &mut self,
        rest: &[u8],
        arguments: &Arguments<'_, '_>,
        pending: bool,
    ) -> Option<usize> {
        let (id, end) = arguments.span(1)?;
        // Behind the id: the end of its line, and what the key's length begins with.
        let end = end + LINE_END.len() + 1;
        let bytes: Box<[u8]> = rest.get(..end).filter(|_| end <= LONGEST)?.into();
        let opening = Opening { bytes, id, has_count: arguments.len() == 4 };
        if self.list.len() < MOST_LIMITS {
            self.list.push(opening);
            return Some(self.list.len() - 1);
        }
        if pending {
            return None;
        }
        let place = self.hand % MOST_LIMITS;
        self.hand = place + 1;
        self.list[place] = opening;
        Some(place)
    }
}

impl Opening {
    /// The length of the frame, its key and its count; `None` if it is not plainly there.
    #[inline]
    fn read<'i>(&self, rest: &'i [u8]) -> Option<(usize, &'i [u8], Amount)> {
        let (key, at) = bulk(rest, self.bytes.len() - 1)?;
        if !self.has_count {
            return Some((at, key, 1));
        }
        let (count, at) = bulk(rest, at)?;
        let count = number(count).filter(|_| count.len() <= LONGEST_COUNT)?;
        Some((at, key, count))
    }

    fn limit_id<'i>(&self, rest: &'i [u8]) -> &'i str {
        let end = self.bytes.len() - 1 - LINE_END.len();
        rest.get(self.id..end).and_then(|id| std::str::from_utf8(id).ok()).unwrap_or_default()
    }
}

/// The bulk string that begins here, and where it ends.
#[inline]
fn bulk(rest: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let (length, start) = short_number(rest, b'$', at)?;
    let text = rest.get(start..start + length + LINE_END.len())?;
    let (bulk, end) = text.split_at(length);
    (end == LINE_END).then_some((bulk, start + length + LINE_END.len()))
}
