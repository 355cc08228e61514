//! Load traces, row by row.
//!
//! ```text
//!   time,cpu                        {"time":0,"cpu":12.5}
//!   0,12.5                          {"time":"2026-03-02T00:00:05Z","cpu":80}
//!   2026-03-02T00:00:05Z,80
//! ```
//!
//! A year has six million rows. So plain numbers are parsed in place and no row allocates. Everything else takes the
//! slow path, which also explains errors.

use std::io::Read;
use std::time::Duration;

use serde_json::value::RawValue;
use tidegate::budget::Rate;
use tidegate::model::Timestamp;
use tidegate_config::text::suggestion;

use crate::lines::{self, LONGEST_LINE, LineBatch};
use crate::{Failure, instant, json, unreadable};

/// The fields of a row, in column order.
const FIELDS: [&str; 2] = ["time", "cpu"];

/// Longest trace: ten years and some days.
const MAX_TRACE: Duration = Duration::from_secs(3660 * 86_400);

const BILLION: u64 = 1_000_000_000;
/// 100 percent, in billionths.
const WHOLE: u64 = 100 * BILLION;
/// Digits of a number of seconds before and after the point.
const MAX_DIGITS: usize = 10;
const MAX_PLACES: usize = 9;
/// Longest quotation in a message.
const MAX_SHOWN: usize = 48;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The load from a time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TraceRow {
    pub(super) at: Timestamp,
    pub(super) load: Rate,
}

/// The format of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TraceFormat {
    Columns,
    Objects,
}

/// Reads a trace.
#[derive(Debug)]
pub(super) struct TraceReader {
    name: String,
    instants: instant::InstantReader,
    format: Option<TraceFormat>,
    /// Number of the latest line, from 1.
    line: u64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

impl TraceReader {
    /// A reader with this name for messages.
    pub(super) fn named(name: String) -> TraceReader {
        let instants = instant::InstantReader::default();
        TraceReader { name, instants, format: None, line: 0, first: None, last: None }
    }

    /// Reads all rows in order. A trace has at least two.
    pub(super) fn read(
        &mut self,
        source: impl Read,
        mut on_row: impl FnMut(TraceRow),
    ) -> Result<(), Failure> {
        let mut input = lines::LineReader::new(source);
        let mut rows = 0_u64;
        loop {
            match input.next() {
                Ok(LineBatch::Lines(piece)) => {
                    for line in lines::split(piece) {
                        self.line += 1;
                        if let Some(row) = self.row(line).map_err(|why| self.refused(&why))? {
                            rows += 1;
                            on_row(row);
                        }
                    }
                }
                Ok(LineBatch::Overlong(..)) => {
                    self.line += 1;
                    return Err(self.refused(&too_long()));
                }
                Ok(LineBatch::End) => break,
                Err(error) => return Err(unreadable(&self.name, &error)),
            }
        }
        let why = match rows {
            0 => "has no rows; write a time and a load per line, such as 0,12.5",
            1 => "has one row; the last row only ends the trace, so there must be two",
            _ => return Ok(()),
        };
        Err(Failure::BadInput(format!("{}:{}: {why}", self.name, self.line.max(1))))
    }

    fn refused(&self, why: &str) -> Failure {
        Failure::BadInput(format!("{}:{}: {why}", self.name, self.line))
    }

    /// Parses a line; a blank line or a header has no row.
    fn row(&mut self, line: &[u8]) -> Result<Option<TraceRow>, String> {
        // Some programs write a byte order mark first.
        let line = if self.line == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(None);
        }
        let is_first = self.format.is_none();
        let format = *self.format.get_or_insert(if line.starts_with(b"{") {
            TraceFormat::Objects
        } else {
            TraceFormat::Columns
        });
        if is_first && is_header(line) {
            return Ok(None);
        }
        let row = match format {
            TraceFormat::Columns => parse_plain_row(line).map_or_else(|| self.columns(line), Ok)?,
            TraceFormat::Objects => self.object(line)?,
        };
        self.follow(row.at)?;
        Ok(Some(row))
    }

    /// Checks that time does not go back and the trace is not too long.
    fn follow(&mut self, at: Timestamp) -> Result<(), String> {
        let (first, last) = (*self.first.get_or_insert(at), self.last.replace(at).unwrap_or(at));
        if at < last {
            return Err("time: must not be before that of the row above; sort the trace by time".to_owned());
        }
        if u128::from(at.since(first).ticks()) > MAX_TRACE.as_nanos() {
            let days = MAX_TRACE.as_secs() / 86_400;
            return Err(format!("time: must be within {days} days of the first row; cut the trace in parts"));
        }
        Ok(())
    }

    fn columns(&mut self, line: &[u8]) -> Result<TraceRow, String> {
        let refuse =
            || format!("must be two columns, a time and a load such as 0,12.5; found {}", quoted(line));
        let comma = memchr::memchr(b',', line).ok_or_else(refuse)?;
        let (time, load) = (line[..comma].trim_ascii_end(), line[comma + 1..].trim_ascii_start());
        if memchr::memchr(b',', load).is_some() {
            return Err(refuse());
        }
        let at = seconds(time).map_or_else(|| self.parse_other_time(time), Ok);
        Ok(TraceRow { at: at.map_err(|why| format!("time: {why}"))?, load: read_load(load)? })
    }

    /// Parses a time that is not plain seconds.
    fn parse_other_time(&mut self, written: &[u8]) -> Result<Timestamp, String> {
        let refuse = || format!("must be RFC 3339 or seconds since 1970, found {}", quoted(written));
        let text = std::str::from_utf8(written).map_err(|_| refuse())?;
        if text.get(1..).is_some_and(|rest| rest.contains(['T', 't', ':'])) {
            return self.instants.read_plain(text);
        }
        let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        if is_number && serde_json::from_str::<&RawValue>(text).is_ok() {
            return self.instants.read(text);
        }
        Err(refuse())
    }

    fn object(&mut self, line: &[u8]) -> Result<TraceRow, String> {
        if line.len() > LONGEST_LINE {
            return Err(too_long());
        }
        let line = std::str::from_utf8(line).map_err(|_| "is not UTF-8 text".to_owned())?;
        let mut values: [Option<&str>; FIELDS.len()] = [None; FIELDS.len()];
        let mut wrong = None;
        let is_object =
            json::fields(line, |name, value| match FIELDS.iter().position(|field| *field == name) {
                Some(field) if values[field].is_none() => values[field] = Some(value),
                Some(_) => wrong = wrong.take().or(Some(format!("{name}: is written twice"))),
                None => wrong = wrong.take().or_else(|| Some(unknown(name))),
            });
        if !is_object.map_err(|why| format!("is not JSON: {why}"))? {
            return Err(format!("must be an object with time and cpu, found {}", json::kind(line)));
        }
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let [time, load] = values;
        let time = time.ok_or("time: is missing; write RFC 3339 or seconds since 1970")?;
        let load = load.ok_or("cpu: is missing; write the demanded load in percent")?;
        let at = seconds(time.as_bytes()).map_or_else(|| self.instants.read(time), Ok);
        Ok(TraceRow { at: at.map_err(|why| format!("time: {why}"))?, load: read_load(load.as_bytes())? })
    }
}

fn is_header(line: &[u8]) -> bool {
    let mut columns = line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    FIELDS
        .iter()
        .all(|field| columns.next().is_some_and(|column| column.eq_ignore_ascii_case(field.as_bytes())))
        && columns.next().is_none()
}

fn too_long() -> String {
    format!("is longer than {} MiB; a row is a line", LONGEST_LINE >> 20)
}

fn unknown(name: &str) -> String {
    let meant = suggestion(name, FIELDS);
    format!("{}: is not a field of a row; the fields are time and cpu{meant}", quoted(name.as_bytes()))
}

/// A quoted, shortened value for messages.
fn quoted(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let mut out: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        out.push('…');
    }
    format!("'{out}'")
}

/// Parses two plain numbers, such as `1761091205,36.5`.
fn parse_plain_row(line: &[u8]) -> Option<TraceRow> {
    let (nanos, rest) = decimal(line)?;
    let (load, rest) = decimal(rest.strip_prefix(b",")?)?;
    let at = Timestamp::from_ticks(i64::try_from(nanos).ok()?.unsigned_abs());
    (rest.is_empty() && load <= WHOLE).then(|| TraceRow { at, load: Rate::from_billionths(load) })
}

/// Parses plain seconds since 1970. Digits after the ninth decimal are left to the slow path.
fn seconds(written: &[u8]) -> Option<Timestamp> {
    let (nanos, rest) = decimal(written)?;
    let nanos = i64::try_from(nanos).ok().filter(|_| rest.is_empty())?;
    Some(Timestamp::from_ticks(nanos.unsigned_abs()))
}

/// Parses a load in percent. Digits finer than a billionth of a percent are ignored.
fn read_load(written: &[u8]) -> Result<Rate, String> {
    let has_places = written.contains(&b'.');
    decimal(written)
        .filter(|(_, rest)| rest.iter().all(|byte| has_places && byte.is_ascii_digit()))
        .filter(|(load, _)| *load <= WHOLE)
        .map(|(load, _)| Rate::from_billionths(load))
        .ok_or_else(|| format!("cpu: must be a number from 0 to 100 such as 36.5, found {}", quoted(written)))
}

/// Parses a decimal number in billionths. Returns the rest too.
fn decimal(written: &[u8]) -> Option<(u64, &[u8])> {
    let (whole, count) = digits(written, MAX_DIGITS);
    let rest = &written[count..];
    let number = whole.checked_mul(BILLION).filter(|_| count > 0)?;
    let Some(places) = rest.strip_prefix(b".") else { return Some((number, rest)) };
    let (part, count) = digits(places, MAX_PLACES);
    let scale = u32::try_from(MAX_PLACES - count).ok()?;
    let number = number.checked_add(part * 10_u64.pow(scale)).filter(|_| count > 0)?;
    Some((number, &places[count..]))
}

/// Parses digits. Returns their number too.
fn digits(written: &[u8], most: usize) -> (u64, usize) {
    let mut number = 0;
    let mut count = 0;
    for byte in written.iter().take(most) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        number = number * 10 + u64::from(digit);
        count += 1;
    }
    (number, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(u64, u64)>, String> {
        let mut rows = Vec::new();
        let on_row = |row: TraceRow| rows.push((row.at.ticks(), row.load.billionths()));
        let read = TraceReader::named("trace".to_owned()).read(text.as_bytes(), on_row);
        read.map(|()| rows).map_err(|failure| failure.to_string())
    }

    #[track_caller]
    fn check(text: &str, rows: &[(u64, u64)]) {
        assert_eq!(read(text).as_deref(), Ok(rows), "{text}");
    }

    #[track_caller]
    fn refuses(text: &str, why: &str) {
        let found = read(text).expect_err("an invalid trace");
        assert!(found.contains(why), "{text}: {found}");
    }

    #[test]
    fn rows_are_parsed_from_csv_and_json() {
        let rows = [(0, 12_500_000_000), (5_250_000_000, 100_000_000_000)];
        check("0,12.5\n5.25,100\n", &rows);
        check("Time, CPU\r\n\r\n0 , 12.5\r\n5.25,100.000\r\n", &rows);
        check("1970-01-01T00:00:00Z,12.5\n1970-01-01T01:00:05.25+01:00,100", &rows);
        check("{\"time\":0,\"cpu\":12.5}\n{\"cpu\":100,\"time\":\"1970-01-01T00:00:05.25Z\"}\n", &rows);
        check("0.0000000000,0.0000000019\n1e3,0", &[(0, 1), (1_000_000_000_000, 0)]);
        check("0,1\n0,2\n", &[(0, 1_000_000_000), (0, 2_000_000_000)]);
    }

    #[test]
    fn invalid_csv_row_is_refused_with_its_line() {
        for (second, why) in [
            ("1", "trace:2: must be two columns"),
            ("1,2,3", "trace:2: must be two columns"),
            ("1,", "trace:2: cpu: must be a number from 0 to 100 such as 36.5, found ''"),
            ("1,NaN", "found 'NaN'"),
            ("1,-1", "found '-1'"),
            ("1,100.000000001", "from 0 to 100"),
            ("1,99999999999999999999", "from 0 to 100"),
            ("1,1e1", "found '1e1'"),
            ("1,5.", "found '5.'"),
            ("1,.5", "found '.5'"),
            ("-1,5", "time: must not be before 1970"),
            ("9999999999,5", "time: must not be after"),
            ("0.0000000001,5", "finer than a nanosecond"),
            ("soon,5", "time: must be RFC 3339 or seconds since 1970, found 'soon'"),
            ("2026-02-29T00:00:00Z,5", "a date that exists"),
            ("2026-02-28T00:00:00,5", "offset"),
            ("316224001,5", "within 3660 days of the first row"),
            ("time,cpu", "time: must be RFC 3339"),
        ] {
            refuses(&format!("0,1\n{second}\n"), why);
        }
        refuses("7,1\n6.999999999,1\n", "trace:2: time: must not be before that of the row above");
    }

    #[test]
    fn invalid_json_row_is_refused_with_its_line() {
        for (second, why) in [
            ("{\"time\":1}", "trace:2: cpu: is missing"),
            ("{\"cpu\":1}", "trace:2: time: is missing"),
            ("{\"time\":1,\"cpu\":2,\"cpu\":2}", "cpu: is written twice"),
            (
                "{\"time\":1,\"cup\":2}",
                "'cup': is not a field of a row; the fields are time and cpu; did you mean 'cpu'?",
            ),
            ("{\"time\":1,\"cpu\":\"2\"}", "cpu: must be a number"),
            ("{\"time\":1,\"cpu\":null}", "cpu: must be a number"),
            ("{\"time\":null,\"cpu\":1}", "time: must be RFC 3339 text"),
            ("{\"time\":1,\"cpu\":2", "is not JSON"),
            ("5,3", "is not JSON"),
            ("[1]", "must be an object with time and cpu, found a list"),
        ] {
            refuses(&format!("{{\"time\":0,\"cpu\":1}}\n{second}\n"), why);
        }
    }

    #[test]
    fn trace_with_fewer_than_two_rows_is_refused() {
        refuses("", "trace:1: has no rows");
        refuses("time,cpu\n\n", "trace:2: has no rows");
        refuses("time,cpu\n5,5\n", "has one row");
    }
}
