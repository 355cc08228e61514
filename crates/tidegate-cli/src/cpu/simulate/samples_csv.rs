//! The samples of a simulation as CSV.
//!
//! Each row covers the time since the previous row: demand, usage and limit. The last two columns are the limits of
//! the window and of the trailing guard from then on.

use std::path::Path;

use tidegate::budget::Rate;
use tidegate::model::Timestamp;
use tidegate_cpu::GovernorDecision;

use crate::Failure;
use crate::cpu::atomic_file::AtomicFile;
use crate::cpu::format::at_most_all;
use crate::instant::{InstantWriter, fraction};

const HEADER: &[u8] = b"time,demand,used,limit,safe,trailing\n";

/// Billionths per unit.
const BILLION: u64 = 1_000_000_000;

/// The CSV file.
#[derive(Debug)]
pub(super) struct SamplesCsv {
    file: AtomicFile,
    instants: InstantWriter,
    line: Vec<u8>,
    /// The first write error; nothing is written after it.
    failed: Option<Failure>,
}

impl SamplesCsv {
    pub(super) fn begin(path: &Path) -> Result<SamplesCsv, Failure> {
        let mut file = AtomicFile::begin_for("--samples", path)?;
        file.write(HEADER)?;
        Ok(SamplesCsv { file, instants: InstantWriter::default(), line: Vec::new(), failed: None })
    }

    pub(super) fn add(
        &mut self,
        at: Timestamp,
        demand: Rate,
        used: Rate,
        limit: Rate,
        look: &GovernorDecision,
    ) {
        self.line.clear();
        self.instants.write(at, &mut self.line);
        let (safe, trailing) = (look.advice.forecast.safe_rate, at_most_all(look.advice.trailing_rate));
        for rate in [demand, used, limit, safe, trailing] {
            self.line.push(b',');
            write_rate(rate, &mut self.line);
        }
        self.line.push(b'\n');
        if self.failed.is_none() {
            self.failed = self.file.write(&self.line).err();
        }
    }

    pub(super) fn finish(self) -> Result<(), Failure> {
        match self.failed {
            Some(failure) => Err(failure),
            None => self.file.finish(),
        }
    }
}

fn write_rate(rate: Rate, out: &mut Vec<u8>) {
    let (whole, part) = (rate.billionths() / BILLION, rate.billionths() % BILLION);
    out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
    if part != 0 {
        fraction(part, out);
    }
}
