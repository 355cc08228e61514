//! Replies to grants without a lease, which are nearly all there are: written in one piece, of which most is the same each time.
//!
//! ```text
//!   *7\r\n:1\r\n:100\r\n:   99   \r\n:-1\r\n:   600   \r\n$0\r\n\r\n$0\r\n\r\n
//!   └ head: the limit ─┘ remaining           reset after ms
//! ```

use tidegate::{Amount, Capacity};

use super::decision_reply::saturating;

/// The room of a number: nineteen digits and one that is written over.
const NUMBER: usize = 20;
const START: &[u8; 9] = b"*7\r\n:1\r\n:";
const MIDDLE: &[u8; 8] = b"\r\n:-1\r\n:";
const END: &[u8; 14] = b"\r\n$0\r\n\r\n$0\r\n\r\n";
const LINE: &[u8; 3] = b"\r\n:";
const LONGEST: usize = START.len() + NUMBER + LINE.len() + NUMBER + MIDDLE.len() + NUMBER + END.len();

/// Writes such replies.
#[derive(Debug)]
pub(super) struct Grants {
    line: [u8; LONGEST],
    /// What the head says, and where it ends.
    head: Option<(Capacity, usize)>,
}

impl Default for Grants {
    fn default() -> Grants {
        Grants { line: [0; LONGEST], head: None }
    }
}

impl Grants {
    /// The reply to one grant.
    #[inline]
    pub(super) fn reply(
        &mut self,
        capacity: Capacity,
        remaining: Option<Amount>,
        reset_after_ms: Option<i64>,
    ) -> &[u8] {
        let at = match self.head {
            Some((known, end)) if known == capacity => end,
            _ => self.begin(capacity),
        };
        let at = self.number(at, remaining.map(saturating));
        let at = self.put(at, MIDDLE);
        let at = self.number(at, reset_after_ms);
        let at = self.put(at, END);
        &self.line[..at]
    }

    #[cold]
    fn begin(&mut self, capacity: Capacity) -> usize {
        let limit = match capacity {
            Capacity::Unlimited => None,
            Capacity::AtMost(amount) => Some(saturating(amount)),
        };
        let at = self.put(0, START);
        let at = self.number(at, limit);
        let end = self.put(at, LINE);
        self.head = Some((capacity, end));
        end
    }

    #[inline]
    fn put<const N: usize>(&mut self, at: usize, piece: &[u8; N]) -> usize {
        self.line[at..at + N].copy_from_slice(piece);
        at + N
    }

    /// A number that is not negative, or -1.
    #[inline]
    fn number(&mut self, at: usize, number: Option<i64>) -> usize {
        let Some(number) = number.and_then(|number| u64::try_from(number).ok()) else {
            return self.put(at, b"-1");
        };
        // Written from the end into a line of its own, and copied whole: what is copied too much is written over.
        let mut digits = [0; 2 * NUMBER];
        let (mut rest, mut start) = (number, NUMBER);
        while rest >= 100 {
            let two = usize::try_from(rest % 100).unwrap_or_default();
            rest /= 100;
            start -= 2;
            digits[start..start + 2].copy_from_slice(&DIGITS[two]);
        }
        let two = DIGITS[usize::try_from(rest).unwrap_or_default()];
        start -= 2;
        digits[start..start + 2].copy_from_slice(&two);
        start += usize::from(rest < 10);
        self.line[at..at + NUMBER].copy_from_slice(&digits[start..start + NUMBER]);
        at + NUMBER - start
    }
}

/// All numbers of two digits.
const DIGITS: [[u8; 2]; 100] = {
    let mut digits = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        #[expect(clippy::cast_possible_truncation, reason = "below a hundred")]
        let (tens, ones) = (number as u8 / 10, number as u8 % 10);
        digits[number] = [b'0' + tens, b'0' + ones];
        number += 1;
    }
    digits
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are() {
        let mut grants = Grants::default();
        let powers = (0..19).map(|power| 10_u64.pow(power));
        let numbers = powers.flat_map(|power| [power - 1, power, power + 1, power * 7 / 3]);
        for number in numbers.chain([0, i64::MAX.unsigned_abs()]) {
            let signed = i64::try_from(number).expect("it fits");
            let reply = grants.reply(Capacity::AtMost(number), Some(number), Some(signed));
            let expected =
                format!("*7\r\n:1\r\n:{number}\r\n:{number}\r\n:-1\r\n:{number}\r\n$0\r\n\r\n$0\r\n\r\n");
            assert_eq!(String::from_utf8_lossy(reply), expected);
        }
    }

    #[test]
    fn what_there_is_not_is_minus_one_and_what_is_too_large_is_cut() {
        let mut grants = Grants::default();
        let reply = grants.reply(Capacity::Unlimited, None, None);
        assert_eq!(reply, b"*7\r\n:1\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n$0\r\n\r\n$0\r\n\r\n");
        let most = i64::MAX;
        let reply = grants.reply(Capacity::AtMost(u64::MAX), Some(u64::MAX), Some(most));
        let expected = format!("*7\r\n:1\r\n:{most}\r\n:{most}\r\n:-1\r\n:{most}\r\n$0\r\n\r\n$0\r\n\r\n");
        assert_eq!(String::from_utf8_lossy(reply), expected);
    }
}
