//! A log written by the first version of the format, byte for byte. Every later version must read it.
//!
//! A change of the format adds another file and keeps this one.

use std::fmt::Write as _;
use std::sync::Arc;

use tidegate_disk::directory::SimulatedDirectory;
use tidegate_disk::wal::PreviousRun;

use super::fixtures::{Replayed, commit, open};

/// One file per line: name, length, and hexadecimal content without trailing zeros.
const VERSION_1: &str = include_str!("golden/version-1.txt");

/// Creates the log in the golden file.
fn write() -> SimulatedDirectory {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    commit(&log, b"superseded", 1);
    log.snapshot(|snapshot| {
        snapshot.put(b"a chunk")?;
        Ok(snapshot.put(b"")?)
    })
    .expect("there is room");
    commit(&log, b"a block", 20);
    // Longer than a segment, with sectors of zeros.
    commit(&log, &[0; 1200], 10);
    commit(&log, &[255; 400], 30);
    log.stop().expect("the log is sound");
    drop(log);
    directory.take("lock");
    directory.killed()
}

pub(crate) fn as_text(directory: &SimulatedDirectory) -> String {
    let mut text = String::new();
    for name in directory.names() {
        let bytes = directory.bytes(&name).expect("it was listed");
        let content = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        write!(text, "{name} {} ", bytes.len()).expect("a string takes everything");
        for byte in &bytes[..content] {
            write!(text, "{byte:02x}").expect("a string takes everything");
        }
        text.push('\n');
    }
    text
}

pub(crate) fn from_text(text: &str) -> SimulatedDirectory {
    let directory = SimulatedDirectory::new();
    for line in text.lines() {
        let [name, length, digits] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("three words: {line}")
        };
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
        let mut bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        bytes.resize(length.parse().expect("a number"), 0);
        directory.put(name, bytes);
    }
    directory
}

#[test]
fn version_1_log_is_read() {
    let (_log, opened, replayed) = open(&Arc::new(from_text(VERSION_1)));
    assert_eq!((opened.previous_run, opened.time, opened.cut_bytes), (PreviousRun::Stopped, 30, 0));
    let blocks = vec![(4, 20, b"a block".to_vec()), (6, 20, vec![0; 1200]), (8, 30, vec![255; 400])];
    assert_eq!(replayed, Replayed { chunks: vec![b"a chunk".to_vec(), Vec::new()], blocks });
    assert_eq!(u128::from_be_bytes(opened.store_id), 0xc15c_0289_ec2d_0a91_67ec_8e65_a18d_ebbe);
}

#[test]
fn written_log_equals_version_1() {
    assert!(
        as_text(&write()) == VERSION_1,
        "a change of format needs another number:\n{}",
        as_text(&write())
    );
}
