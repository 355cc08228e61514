//! A reply template for grants without a lease, the most frequent reply. Most of its bytes are constant.
//!
//! ```text
//!   *7\r\n:1\r\n:100\r\n:   99   \r\n:-1\r\n:   600   \r\n$0\r\n\r\n$0\r\n\r\n
//!   └ prefix: limit ───┘ remaining           reset after ms
//! ```

use tidegate::model::{Amount, Capacity};

use super::decision_reply::saturating;

/// Space for a number: nineteen digits and one byte that is overwritten.
const MAX_DIGITS: usize = 20;
const PREFIX: &[u8; 9] = b"*7\r\n:1\r\n:";
const MIDDLE: &[u8; 8] = b"\r\n:-1\r\n:";
const SUFFIX: &[u8; 14] = b"\r\n$0\r\n\r\n$0\r\n\r\n";
const SEPARATOR: &[u8; 3] = b"\r\n:";
const MAX_REPLY_BYTES: usize =
    PREFIX.len() + MAX_DIGITS + SEPARATOR.len() + MAX_DIGITS + MIDDLE.len() + MAX_DIGITS + SUFFIX.len();

/// Renders grants into a reused buffer.
#[derive(Debug)]
pub(super) struct GrantTemplate {
    reply: [u8; MAX_REPLY_BYTES],
    /// The capacity in the prefix, and where the prefix ends.
    prefix: Option<(Capacity, usize)>,
}

impl Default for GrantTemplate {
    fn default() -> GrantTemplate {
        GrantTemplate { reply: [0; MAX_REPLY_BYTES], prefix: None }
    }
}

impl GrantTemplate {
    /// The reply to one grant.
    #[inline]
    pub(super) fn render(
        &mut self,
        capacity: Capacity,
        remaining: Option<Amount>,
        reset_after_ms: Option<i64>,
    ) -> &[u8] {
        let at = match self.prefix {
            Some((known, end)) if known == capacity => end,
            _ => self.write_prefix(capacity),
        };
        let at = self.append_number(at, remaining.map(saturating));
        let at = self.append(at, MIDDLE);
        let at = self.append_number(at, reset_after_ms);
        let at = self.append(at, SUFFIX);
        &self.reply[..at]
    }

    #[cold]
    fn write_prefix(&mut self, capacity: Capacity) -> usize {
        let limit = match capacity {
            Capacity::Unlimited => None,
            Capacity::AtMost(amount) => Some(saturating(amount)),
        };
        let at = self.append(0, PREFIX);
        let at = self.append_number(at, limit);
        let end = self.append(at, SEPARATOR);
        self.prefix = Some((capacity, end));
        end
    }

    #[inline]
    fn append<const N: usize>(&mut self, at: usize, piece: &[u8; N]) -> usize {
        self.reply[at..at + N].copy_from_slice(piece);
        at + N
    }

    /// Writes a non-negative number, or -1.
    #[inline]
    fn append_number(&mut self, at: usize, number: Option<i64>) -> usize {
        let Some(number) = number.and_then(|number| u64::try_from(number).ok()) else {
            return self.append(at, b"-1");
        };
        // Digits are written backwards into a scratch array and copied with a fixed length; excess bytes are overwritten later.
        let mut digits = [0; 2 * MAX_DIGITS];
        let (mut rest, mut start) = (number, MAX_DIGITS);
        while rest >= 100 {
            let two = usize::try_from(rest % 100).unwrap_or_default();
            rest /= 100;
            start -= 2;
            digits[start..start + 2].copy_from_slice(&TWO_DIGITS[two]);
        }
        let two = TWO_DIGITS[usize::try_from(rest).unwrap_or_default()];
        start -= 2;
        digits[start..start + 2].copy_from_slice(&two);
        start += usize::from(rest < 10);
        self.reply[at..at + MAX_DIGITS].copy_from_slice(&digits[start..start + MAX_DIGITS]);
        at + MAX_DIGITS - start
    }
}

/// All two-digit numbers.
const TWO_DIGITS: [[u8; 2]; 100] = {
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
    fn numbers_are_rendered_in_decimal() {
        let mut template = GrantTemplate::default();
        let powers = (0..19).map(|power| 10_u64.pow(power));
        let numbers = powers.flat_map(|power| [power - 1, power, power + 1, power * 7 / 3]);
        for number in numbers.chain([0, i64::MAX.unsigned_abs()]) {
            let signed = i64::try_from(number).expect("it fits");
            let reply = template.render(Capacity::AtMost(number), Some(number), Some(signed));
            let expected =
                format!("*7\r\n:1\r\n:{number}\r\n:{number}\r\n:-1\r\n:{number}\r\n$0\r\n\r\n$0\r\n\r\n");
            assert_eq!(String::from_utf8_lossy(reply), expected);
        }
    }

    #[test]
    fn missing_numbers_are_minus_one_and_large_ones_saturate() {
        let mut template = GrantTemplate::default();
        let reply = template.render(Capacity::Unlimited, None, None);
        assert_eq!(reply, b"*7\r\n:1\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n$0\r\n\r\n$0\r\n\r\n");
        let most = i64::MAX;
        let reply = template.render(Capacity::AtMost(u64::MAX), Some(u64::MAX), Some(most));
        let expected = format!("*7\r\n:1\r\n:{most}\r\n:{most}\r\n:-1\r\n:{most}\r\n$0\r\n\r\n$0\r\n\r\n");
        assert_eq!(String::from_utf8_lossy(reply), expected);
    }
}
