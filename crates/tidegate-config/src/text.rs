//! Parsers of numbers, times, sizes and addresses, for the command line and for files.
//!
//! All callers share one grammar. A duration is one whole number and one unit. A rate is a count over a duration. An instant is
//! RFC 3339 with an offset. A size is one whole number and one unit that is a power of 1024. An address includes its port.
//! The error of a parser quotes the text and shows what is allowed; the caller adds the position.
//!
//! These forms are rejected, with a suggestion where one exists:
//! - fractions (`1.5h` is `90m`), sums (`1h30m`), thousands separators and missing units;
//! - local times without an offset;
//! - leap seconds, because a count of seconds since the epoch cannot represent them;
//! - sizes in `MB`, which means 10^6 or 2^20 bytes;
//! - host names, which may resolve to several addresses or to none.

mod address;
mod duration;
mod instant;
mod number;
mod password;
mod quote;
mod size;
mod suggestion;
mod time_of_day;

pub use address::parse_address;
pub use duration::{parse_duration, parse_rate};
pub use instant::parse_instant;
pub use number::{format_decimal, parse_capacity, parse_decimal, parse_whole};
pub(crate) use password::password_ranges;
pub use password::{without_passwords, without_store_passwords};
pub use quote::quoted;
pub(crate) use quote::shortened;
pub(crate) use size::format_size;
pub use size::parse_size;
pub(crate) use suggestion::normalize_word;
pub use suggestion::{did_you_mean, nearest, suggestion};
pub use time_of_day::{TimeOfDay, parse_time_of_day};
