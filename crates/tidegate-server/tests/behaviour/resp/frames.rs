//! Parsing of frames.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_server::resp::frame::{
    FrameError, FrameReader, Framing, MAX_ARGUMENTS, MAX_FRAME_BYTES, MAX_INLINE_BYTES, RespFrame,
};
use tidegate_testkit::test_scale::cases;

use crate::resp::fixture::encode;

/// All commands in these bytes when they arrive in pieces of these sizes, and the error at the end.
fn read(bytes: &[u8], mut sizes: impl Iterator<Item = usize>) -> (Vec<Vec<Vec<u8>>>, Option<FrameError>) {
    let mut reader = FrameReader::default();
    let (mut start, mut end, mut commands) = (0, 0, Vec::new());
    loop {
        match reader.read(&bytes[start..end]) {
            Ok(RespFrame::Whole { length, .. }) => {
                let arguments = reader.arguments(&bytes[start..end]);
                assert_eq!(arguments.len(), arguments.iter().count());
                assert!(!arguments.is_empty());
                commands.push(arguments.iter().map(<[u8]>::to_vec).collect());
                start += length;
            }
            Ok(RespFrame::Blank { length }) => start += length,
            Ok(RespFrame::Partial) if end == bytes.len() => return (commands, None),
            Ok(RespFrame::Partial) => {
                end = end.saturating_add(sizes.next().unwrap_or(usize::MAX)).min(bytes.len());
            }
            Err(fault) => return (commands, Some(fault)),
        }
    }
}

fn whole(bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, Option<FrameError>) {
    read(bytes, std::iter::empty())
}

#[track_caller]
fn check(bytes: impl AsRef<[u8]>, commands: &[&[&str]], fault: Option<FrameError>) {
    let expected: Vec<Vec<Vec<u8>>> = commands
        .iter()
        .map(|command| command.iter().map(|word| word.as_bytes().to_vec()).collect())
        .collect();
    assert_eq!(whole(bytes.as_ref()), (expected.clone(), fault));
    assert_eq!(read(bytes.as_ref(), std::iter::repeat(1)), (expected, fault), "byte by byte");
}

#[test]
fn arrays_and_inline_commands_are_parsed() {
    check("*1\r\n$4\r\nPING\r\n", &[&["PING"]], None);
    check("*2\r\n$4\r\nECHO\r\n$0\r\n\r\nPING\r\n", &[&["ECHO", ""], &["PING"]], None);
    check("*1\r\n$4\r\n\r\n\r\n\r\n", &[&["\r\n\r\n"]], None);
    check("PING\n", &[&["PING"]], None);
    check("  ECHO\t'a b'  \"c'd\" ''\r\n", &[&["ECHO", "a b", "c'd", ""]], None);
}

#[test]
fn framing_is_reported() {
    let mut reader = FrameReader::default();
    assert_eq!(reader.read(b"PING\r\n"), Ok(RespFrame::Whole { length: 6, framing: Framing::Inline }));
    assert_eq!(
        reader.read(b"*1\r\n$1\r\nx\r\n*"),
        Ok(RespFrame::Whole { length: 11, framing: Framing::Array })
    );
}

#[test]
fn blank_frames_are_skipped() {
    check("*0\r\n*-1\r\n*-9223372036854775808\r\n\r\n\n  \r\nPING\r\n", &[&["PING"]], None);
}

#[test]
fn partial_frame_needs_more_input() {
    for half in ["", "*", "*1", "*1\r", "*1\r\n", "*1\r\n$", "*1\r\n$2\r\nab", "*1\r\n$2\r\nab\r", "PING"] {
        check(half, &[], None);
    }
}

#[test]
fn only_canonical_numbers_are_accepted() {
    let numbers = ["", "+1", "01", "00", " 1", "1 ", "1x", "x", "0x1", "-0", "-", "--1", "1\0", "1\n"];
    for number in numbers {
        check(format!("*{number}\r\n"), &[], Some(FrameError::ArrayLength));
        check(format!("*1\r\n${number}\r\n"), &[], Some(FrameError::BulkLength));
    }
    check("*1\r\n$-1\r\n", &[], Some(FrameError::BulkLength));
    check("*-01\r\n", &[], Some(FrameError::ArrayLength));
    check("*1\rx", &[], Some(FrameError::ArrayLength));
    check("*1\r\n$1\rx", &[], Some(FrameError::BulkLength));
}

#[test]
fn oversized_frames_are_refused_by_their_length() {
    for number in ["1025", "1048576", "2147483648", "9223372036854775807", "18446744073709551615"] {
        check(format!("*{number}\r\n"), &[], Some(FrameError::ArrayLength));
    }
    check("*18446744073709551616\r\n", &[], Some(FrameError::ArrayLength));
    check("*-99999999999999999999\r\n", &[], Some(FrameError::ArrayLengthTooLong));
    check("*-9999999999999999999\r\n", &[], None);
    for number in ["65536", "536870912", "9223372036854775807", "18446744073709551615"] {
        check(format!("*1\r\n${number}\r\n"), &[], Some(FrameError::FrameTooLarge));
    }
    check("*1\r\n$18446744073709551616\r\n", &[], Some(FrameError::BulkLength));
    check("*".to_owned() + &"1".repeat(100), &[], Some(FrameError::ArrayLengthTooLong));
    check("*1\r\n$".to_owned() + &"1".repeat(100), &[], Some(FrameError::BulkLengthTooLong));
}

#[test]
fn argument_that_is_not_a_bulk_string_is_an_error() {
    for other in *b"*+-:_%~,(#!=>|\0a" {
        let frame = [b"*1\r\n".as_slice(), &[other], b"1\r\nx\r\n"].concat();
        check(frame, &[], Some(FrameError::NotBulk(other)));
    }
    check("*1\r\n$1\r\nxy\r\n", &[], Some(FrameError::BulkEnd));
    check("*1\r\n$3\r\nab\r\n\r\n", &[], Some(FrameError::BulkEnd));
    check("*1\r\n$1\r\nx\n\n", &[], Some(FrameError::BulkEnd));
}

#[test]
fn bounds_are_inclusive() {
    let most = vec!["x"; MAX_ARGUMENTS];
    check(encode(&most), &[&most], None);
    check(vec!["x"; MAX_ARGUMENTS].join(" ") + "\n", &[&most], None);
    check(vec!["x"; MAX_ARGUMENTS + 1].join(" ") + "\n", &[], Some(FrameError::ArrayLength));

    let head = "*1\r\n$65522\r\n".len();
    let largest = "x".repeat(MAX_FRAME_BYTES - head - 2);
    let frame = encode(&[&largest]);
    assert_eq!(frame.len(), MAX_FRAME_BYTES);
    assert_eq!(whole(&frame).0.len(), 1);
    assert_eq!(whole(&encode(&[largest + "x"])).1, Some(FrameError::FrameTooLarge));
    let halves = ["x".repeat(MAX_FRAME_BYTES / 2), "x".repeat(MAX_FRAME_BYTES / 2)];
    assert_eq!(whole(&encode(&halves)).1, Some(FrameError::FrameTooLarge), "all of it together");

    let longest = "x".repeat(MAX_INLINE_BYTES - 1) + "\n";
    assert_eq!(whole(longest.as_bytes()).0.len(), 1);
    check("x".to_owned() + &longest, &[], Some(FrameError::InlineTooLong));
    check("x".repeat(MAX_INLINE_BYTES), &[], Some(FrameError::InlineTooLong));
}

#[test]
fn quotes_must_close_at_the_end_of_a_word() {
    for line in ["\"", "'a", "\"a\"b", "'a''b'", "\"a\\\"\"", "\"\\n\""] {
        check(line.to_owned() + "\r\n", &[], Some(FrameError::Quotes));
    }
}

#[test]
fn shrinking_input_is_a_partial_frame() {
    let mut reader = FrameReader::default();
    assert_eq!(reader.read(b"*2\r\n$4\r\nPING\r\n"), Ok(RespFrame::Partial));
    assert_eq!(reader.read(b"*2"), Ok(RespFrame::Partial));
    assert_eq!(reader.read(b""), Ok(RespFrame::Partial));
}

/// Random bytes that resemble the protocol.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec![
            "*", "$", "\r\n", "\r", "\n", "0", "1", "2", "3", "-1", "65536", "\"", "'", " ", "PING", "TG.PEEK",
            "*1\r\n", "$4\r\nPING\r\n", "*2\r\n$4\r\nECHO\r\n", "$0\r\n\r\n", "*0\r\n",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..8),
    ];
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn encoded_commands_are_parsed_back(
        commands in vec(vec(vec(any::<u8>(), 0..40), 1..8), 0..6),
        sizes in vec(1usize..30, 0..60),
    ) {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        prop_assert_eq!(read(&bytes, sizes.into_iter()), (commands, None));
    }

    #[test]
    fn random_bytes_parse_the_same_in_any_pieces(bytes in noise(), sizes in vec(1usize..9, 0..60)) {
        prop_assert_eq!(read(&bytes, sizes.into_iter()), whole(&bytes));
    }
}
