//! Formatting of numbers for text output.

/// A number with commas between groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number and its noun: `1 failure`, `2,000 failures`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// A share in hundredths of a percent, rounded down: only the whole is 100 %.
pub(super) fn basis_points(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(u128::from(part) * 10_000 / u128::from(whole)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_in_threes() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn noun_agrees_with_its_number() {
        assert_eq!(counted(1, "failure", "failures"), "1 failure");
        assert_eq!(counted(0, "failure", "failures"), "0 failures");
        assert_eq!(counted(2000, "failure", "failures"), "2,000 failures");
    }

    #[test]
    fn share_is_rounded_down() {
        assert_eq!(basis_points(999_999, 1_000_000), 9_999);
        assert_eq!(basis_points(7, 7), 10_000);
        assert_eq!(basis_points(1, 3), 3_333);
        assert_eq!(basis_points(0, 0), 0);
        assert_eq!(basis_points(u64::MAX, u64::MAX), 10_000);
    }
}
