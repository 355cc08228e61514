//! The writer: the thread that makes appends durable, one parcel after the other.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate::store::Unavailable;

use super::active_segment::{End, Failure};
use super::append_queue::{Closing, Health, Job, Parcel, Rolled, now};
use super::block::{self, Kind};
use super::{Shared, snapshot_file};

/// How long to wait before a full disk is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Starts the writer.
pub(super) fn start(shared: Arc<Shared>, end: End) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("tidegate-log".to_owned());
    thread.spawn(move || {
        // If the writer should ever panic, nobody must wait for it.
        let reason = "the writer ended without a word".to_owned();
        let mut farewell = Farewell { shared: Arc::clone(&shared), health: Health::Broken { reason } };
        farewell.health = Writer { shared, end }.run();
    })
}

/// Tells everybody that the writer ended, and how, when it is dropped.
struct Farewell {
    shared: Arc<Shared>,
    health: Health,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.shared.desk.end(self.health.clone());
        if let Some(refusal) = self.health.refusal() {
            self.shared.hall.fail(refusal);
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    end: End,
}

impl Writer {
    /// Works until the log is closed or broken; says which.
    fn run(&mut self) -> Health {
        loop {
            let outcome = match self.shared.desk.next() {
                Job::Write(parcel) => self.write(parcel),
                Job::Roll(answer) => self.roll(&answer),
                Job::Close(Closing::Stop) => self.stop(),
                Job::Close(Closing::Drop) => Err(Health::Stopped),
            };
            if let Err(health) = outcome {
                return health;
            }
        }
    }

    /// Makes a parcel durable, however long the disk is full. An error means that the writer ends.
    fn write(&mut self, mut parcel: Parcel) -> Result<(), Health> {
        let begun = now();
        loop {
            match self.end.write(&mut parcel.buffer, Kind::Records, parcel.time) {
                Ok(()) => {
                    let (end, bytes, took) = (parcel.end, parcel.bytes, now() - begun);
                    self.count(parcel.buffer.len());
                    // First the desk: whoever is told that the log is durable finds it sound.
                    self.shared.desk.done(parcel);
                    self.shared.hall.publish(end);
                    self.shared.desk.rest(bytes, took);
                    return Ok(());
                }
                Err(Failure::Broken(reason)) => return Err(Health::Broken { reason }),
                Err(Failure::Full(reason)) => {
                    let full = Health::Full { reason };
                    let refusal = full.refusal().expect("a full disk refuses");
                    self.shared.desk.fail(full.clone());
                    self.shared.hall.fail(refusal);
                    if self.shared.desk.pause(TRY_AGAIN).is_some() {
                        return self.last_try(parcel, full);
                    }
                }
            }
        }
    }

    /// The log is closed while the disk is full: once more, then what is pending is lost, and whoever waits was told.
    fn last_try(&mut self, mut parcel: Parcel, full: Health) -> Result<(), Health> {
        self.end.write(&mut parcel.buffer, Kind::Records, parcel.time).map_err(|failure| match failure {
            Failure::Full(_) => full,
            Failure::Broken(reason) => Health::Broken { reason },
        })?;
        self.count(parcel.buffer.len());
        let end = parcel.end;
        self.shared.desk.done(parcel);
        self.shared.hall.publish(end);
        Ok(())
    }

    /// Begins another segment for a snapshot. That there is no room for one is the snapshot's trouble only.
    fn roll(&mut self, answer: &Sender<Result<Rolled, Unavailable>>) -> Result<(), Health> {
        let rolled = self.end.roll(block::EMPTY as u64);
        let (told, outcome) = match rolled {
            Ok(()) => {
                self.count(block::EMPTY);
                (Ok(self.rolled()), Ok(()))
            }
            Err(Failure::Full(reason)) => {
                let refusal = Health::Full { reason }.refusal().expect("a full disk refuses");
                (Err(refusal), Ok(()))
            }
            Err(Failure::Broken(reason)) => {
                let broken = Health::Broken { reason };
                (Err(broken.refusal().expect("a broken one too")), Err(broken))
            }
        };
        // Whoever asked may have gone.
        let _ = answer.send(told);
        outcome
    }

    fn rolled(&self) -> Rolled {
        let header =
            snapshot_file::Header { segment: self.end.segment, link: self.end.link, time: self.end.time };
        Rolled { header, written: self.shared.written.load(Ordering::Acquire) }
    }

    fn stop(&mut self) -> Result<(), Health> {
        Err(match self.end.mark(Kind::Stop) {
            Ok(()) => Health::Stopped,
            Err(Failure::Full(reason)) => Health::Full { reason },
            Err(Failure::Broken(reason)) => Health::Broken { reason },
        })
    }

    fn count(&self, bytes: usize) {
        self.shared.written.fetch_add(bytes as u64, Ordering::AcqRel);
        self.shared.segment.store(self.end.segment, Ordering::Release);
    }
}
