//! Values as messages show them.

use super::password::without_passwords;

/// A value as messages show it: in quotes, on one line, at most 48 characters, without passwords.
pub fn quoted(text: &str) -> String {
    format!("'{}'", shortened(text))
}

/// Same as [`quoted`], without the quotes.
pub(crate) fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 48;
    let mut shown = String::new();
    for (count, letter) in without_passwords(text).chars().enumerate() {
        if count == MAX_CHARS {
            shown.push('…');
            break;
        }
        match letter {
            '\'' | '"' | '\\' => shown.push(letter),
            _ => shown.extend(letter.escape_debug()),
        }
    }
    shown
}
