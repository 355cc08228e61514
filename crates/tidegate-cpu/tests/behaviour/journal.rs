//! The sample journal: reading, locking, damage, retention and restarts.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tidegate::budget::{Quota, Rate};
use tidegate_core::Timestamp;
use tidegate_cpu::journal::{
    JournalError, SampleJournal, UsageSample, before, is_in_use, latest, read_since,
};
use tidegate_cpu::{Governor, Observation};

use super::{after, settings};

const DAY: Duration = Duration::from_secs(86_400);
const SAMPLE: Duration = Duration::from_secs(5);

fn sample(number: u32, total: Quota) -> UsageSample {
    let at = SAMPLE * number;
    UsageSample {
        at: after(at),
        total,
        observed: true,
        applied: Rate::from_units(20 + number % 7),
        counter: at,
        counter_id: 7,
        target: tidegate_cpu::meter::TargetId::UNKNOWN,
        boot: 1,
        uptime: at,
    }
}

/// Writes `count` samples of a load of 20 %.
fn write(folder: &Path, count: u32) -> Vec<UsageSample> {
    let mut journal = SampleJournal::open(folder, DAY * 30).expect("a journal");
    let samples: Vec<UsageSample> =
        (0..count).map(|number| sample(number, Rate::from_units(20).over(SAMPLE * number))).collect();
    for sample in &samples {
        journal.append(sample).expect("room on the disk");
    }
    samples
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn read_since_returns_written_samples() {
    let folder = folder();
    let samples = write(folder.path(), 20_000);
    assert_eq!(read_since(folder.path(), Timestamp::EPOCH).expect("it is there"), samples);
    assert!(!is_in_use(folder.path()));
    assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 3, "two days and the lock");
    // Only the required files are read.
    let late = read_since(folder.path(), samples[19_000].at.wall).expect("it is there");
    assert_eq!(late, samples[17_280..]);
    assert_eq!(read_since(&folder.path().join("nowhere"), Timestamp::EPOCH).expect("nothing"), []);
}

#[test]
fn second_open_of_journal_returns_in_use() {
    let folder = folder();
    let journal = SampleJournal::open(folder.path(), DAY).expect("a journal");
    assert!(is_in_use(folder.path()));
    assert!(matches!(SampleJournal::open(folder.path(), DAY), Err(JournalError::InUse)));
    drop(journal);
    SampleJournal::open(folder.path(), DAY).expect("it is free again");
}

/// A journal without samples removes its lock file.
#[test]
fn drop_of_empty_journal_removes_lock() {
    let folder = folder();
    let lock = folder.path().join("lock");
    let journal = SampleJournal::open(folder.path(), DAY).expect("a journal");
    assert!(lock.exists());
    drop(journal);
    assert!(!lock.exists(), "the journal wrote no sample");
    write(folder.path(), 1);
    assert!(lock.exists());
    drop(SampleJournal::open(folder.path(), DAY).expect("a journal"));
    assert!(lock.exists(), "the lock existed before");
}

/// A torn tail and a damaged record are skipped. Totals are cumulative, so the next record contains their usage.
#[test]
fn read_since_skips_damaged_records() {
    let folder = folder();
    let samples = write(folder.path(), 100);
    let file = fs::read_dir(folder.path()).expect("it is there").map(|entry| entry.expect("a file").path());
    let file = file.into_iter().find(|path| path.extension().is_some()).expect("samples");
    let mut bytes = fs::read(&file).expect("samples");
    let length = (bytes.len() - 24) / 100;
    bytes[24 + 50 * length + 17] ^= 1;
    bytes.truncate(bytes.len() - 3);
    fs::write(&file, bytes).expect("room on the disk");
    let read = read_since(folder.path(), Timestamp::EPOCH).expect("it is there");
    let mut expected = samples;
    expected.remove(99);
    expected.remove(50);
    assert_eq!(read, expected);
    let governor = Governor::resume(settings("unobserved: zero"), &read).expect("samples");
    assert_eq!(governor.account().used(), Rate::from_units(20).over(SAMPLE * 98), "nothing is lost");
    // The next writer begins a new file after the torn one.
    let mut journal = SampleJournal::open(folder.path(), DAY * 30).expect("a journal");
    journal.append(&sample(200, Quota::ZERO)).expect("room on the disk");
    let read = read_since(folder.path(), Timestamp::EPOCH).expect("it is there");
    assert_eq!(read.last(), Some(&sample(200, Quota::ZERO)));
}

/// An empty file is skipped; the latest sample is in the file before it.
#[test]
fn latest_skips_empty_files() {
    let folder = folder();
    assert_eq!(latest(folder.path()).expect("it is there"), None);
    assert_eq!(latest(&folder.path().join("nowhere")).expect("nothing"), None);
    let samples = write(folder.path(), 3);
    fs::write(folder.path().join("00000000009000000000.samples"), b"tidegate cpu samples 1\n\n")
        .expect("room");
    assert_eq!(latest(folder.path()).expect("it is there"), samples.last().copied());
}

/// A resumed governor counts the samples of its window again, with or without a sample at the start of the window.
#[test]
fn resume_restores_sample_counts() {
    let text = "rolling_window_hours: 1\nmin_load_percent: 0";
    let mut governor = Governor::new(settings(text), after(Duration::ZERO));
    let mut samples = vec![UsageSample { applied: governor.applied(), ..sample(0, Quota::ZERO) }];
    let mut total = Quota::ZERO;
    for number in 1..1000u32 {
        let over = Rate::from_units(if number % 10 == 3 { 2 } else { 1 });
        let used = governor.applied().plus(over).over(SAMPLE);
        let is_seen = number != 720;
        total = if is_seen { total.plus(used) } else { total };
        let seen = if is_seen { Observation::Used(used) } else { Observation::Nothing };
        let decision = governor.observe(after(SAMPLE * number), seen);
        samples.push(UsageSample { applied: decision.applied, observed: is_seen, ..sample(number, total) });
        let again = Governor::resume(settings(text), &samples).expect("samples");
        assert_eq!(again.samples(), governor.samples(), "at {number}");
    }
    assert_eq!(governor.samples(), (279, 28), "279 in the window, every tenth too much");
}

#[test]
fn append_removes_expired_files() {
    let folder = folder();
    let mut journal = SampleJournal::open(folder.path(), DAY * 8).expect("a journal");
    // The journal would need months of samples for this many files, so the test creates them.
    for day in 0..20 {
        let second = after(DAY * day).wall.ticks() / 1_000_000_000;
        fs::write(folder.path().join(format!("{second:020}.samples")), b"tidegate cpu samples 1\n\n")
            .expect("room");
    }
    journal.append(&sample(17_280 * 20, Quota::ZERO)).expect("room on the disk");
    let left = fs::read_dir(folder.path()).expect("it is there").count();
    assert_eq!(left, 11, "eight days, the one that reaches into them, the new one, and the lock");
}

#[test]
fn read_since_rejects_unknown_version() {
    let folder = folder();
    fs::write(folder.path().join("00000000000000000001.samples"), b"tidegate cpu samples 9\n\nand so on")
        .expect("room");
    let error = read_since(folder.path(), Timestamp::EPOCH).expect_err("not ours");
    assert!(error.to_string().contains("not a sample file of this version"), "{error}");
}

/// A governor that resumes from its journal decides like one that never stopped.
#[test]
fn resume_continues_same_window() {
    let folder = folder();
    let text = "rolling_window_hours: 2";
    let mut journal = SampleJournal::open(folder.path(), DAY * 30).expect("a journal");
    let mut governor = Governor::new(settings(text), after(Duration::ZERO));
    let mut total = Quota::ZERO;
    let load =
        |number: u32| Rate::from_units(if (number / 200).is_multiple_of(3) { 90 } else { number % 37 });
    let begin = sample(0, Quota::ZERO);
    journal.append(&UsageSample { applied: governor.applied(), ..begin }).expect("room on the disk");
    for number in 1..4000u32 {
        let used = load(number).min(governor.applied()).over(SAMPLE);
        total = total.plus(used);
        let decision = governor.observe(after(SAMPLE * number), Observation::Used(used));
        let written = UsageSample { applied: decision.applied, ..sample(number, total) };
        journal.append(&written).expect("room on the disk");
        if number % 499 == 0 {
            let now = written.at.wall;
            let window = governor.account().window().start.min(before(now, Duration::from_secs(7200)));
            let samples = read_since(folder.path(), before(window, SAMPLE)).expect("it is there");
            let mut again = Governor::resume(settings(text), &samples).expect("samples");
            assert_eq!(again.applied(), governor.applied());
            assert_eq!(again.advice(), governor.advice(), "at {number}");
            assert_eq!(again.account().used(), governor.account().used());
            governor = again;
        }
    }
}
