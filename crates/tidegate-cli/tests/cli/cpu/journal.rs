//! Journals as written by a governor.

#![allow(clippy::disallowed_methods, reason = "whether to publish, the environment says")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use tidegate::budget::{BudgetTime, Quota, Rate};
use tidegate_core::{Span, Timestamp};
use tidegate_cpu::journal::{SampleJournal, UsageSample};
use tidegate_cpu::settings::read_cpu;
use tidegate_cpu::{Governor, GovernorSettings, Observation};

use crate::{Files, example};

/// 2025-10-22T00:00:00Z.
pub(super) const MIDNIGHT: u64 = 1_761_091_200;

/// The demanded load of a sample in percent, or `None` if unobserved.
pub(super) type Demand = fn(number: u32) -> Option<u32>;

/// Runs a simulated governor from midnight on and keeps its samples in a directory.
pub(super) fn govern(folder: &Path, config: &str, count: u32, demand: Demand) -> SampleJournal {
    let spec =
        read_cpu("cpu.yaml", config.as_bytes()).unwrap_or_else(|invalid| panic!("{}", invalid.summary()));
    let settings = GovernorSettings::of(spec).expect("they make sense");
    let every = settings.sample_every;
    let at = |time: Duration| {
        let nanos = u64::try_from(time.as_nanos()).expect("some days");
        let wall = Timestamp::from_ticks(MIDNIGHT * 1_000_000_000).plus(Span::from_ticks(nanos));
        BudgetTime { wall, monotonic: i64::try_from(nanos).expect("some days") }
    };
    let mut journal = SampleJournal::open(folder, settings.retention).expect("a journal");
    let mut governor = Governor::new(settings, at(Duration::ZERO));
    let mut total = Quota::ZERO;
    for number in 0..=count {
        let time = every * number;
        let wanted = demand(number).filter(|_| number > 0).map(Rate::from_units);
        let used = wanted.map(|wanted| wanted.min(governor.applied()).over(every));
        if number > 0 {
            governor.observe(at(time), used.map_or(Observation::Nothing, Observation::Used));
        }
        total = total.plus(used.unwrap_or_default());
        let sample = UsageSample {
            at: at(time),
            total,
            observed: used.is_some(),
            applied: governor.applied(),
            counter: time,
            counter_id: 7,
            target: tidegate_cpu::meter::TargetId::UNKNOWN,
            boot: 1,
            uptime: time,
        };
        journal.append(&sample).expect("room on the disk");
    }
    journal
}

/// A day and a half: quiet nights, and a pause of the governor after noon.
fn office(number: u32) -> Option<u32> {
    let (hour, wiggle) = (number / 12 % 24, number * 37 % 11);
    match hour {
        _ if (96..104).contains(&number) => None,
        0..10 => Some(35 + 5 * wiggle),
        10..13 => Some(18 + wiggle),
        _ => Some(4 + wiggle / 2),
    }
}

/// The example must equal today's output. A difference may mean that old journals are no longer readable.
#[test]
fn example_journal_is_unchanged() {
    let config = fs::read_to_string(example("cpu/cpu.yaml")).expect("it is there");
    let files = Files::new();
    drop(govern(&files.path("state"), &config, 432, office));
    let name = format!("{MIDNIGHT:020}.samples");
    let written = fs::read(files.path("state").join(&name)).expect("samples");
    let shown = Path::new(&example("cpu/state")).join(&name);
    if std::env::var_os("TIDEGATE_PUBLISH").is_some() {
        fs::write(shown, written).expect("the examples are writable");
        return;
    }
    assert!(fs::read(&shown).expect("it is there") == written, "TIDEGATE_PUBLISH=1 writes it anew");
}
