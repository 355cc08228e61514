//! The command line.

use tidegate_bench::Stopwatch;

use crate::Failure;

/// Makes this process the child that measures one case, named by the remaining arguments.
pub(crate) const CHILD: &str = "--child";

/// The default number of keys of a flood.
const FLOOD_KEYS: u64 = 50_000_000;

/// The parsed arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) is_json: bool,
    pub(crate) effort: CompareEffort,
    pub(crate) stopwatch: Stopwatch,
    /// The selected scenarios. None selects all, unless a flood is selected.
    filters: Vec<String>,
    /// The number of keys of the flood, if it is selected.
    pub(crate) flood_keys: Option<u64>,
    /// The one case that this process measures.
    pub(crate) child: Option<Vec<String>>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompareEffort {
    /// Enough for reliable figures.
    Full,
    /// Enough for a functional check.
    Quick,
}

impl CompareEffort {
    /// The number of rounds.
    pub(crate) fn rounds(self) -> usize {
        match self {
            CompareEffort::Full => 9,
            CompareEffort::Quick => 3,
        }
    }

    /// The full amount or a fiftieth.
    pub(crate) fn of(self, full: u64) -> u64 {
        match self {
            CompareEffort::Full => full,
            CompareEffort::Quick => full / 50,
        }
    }
}

impl Args {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Args, Failure> {
        let mut args = Args {
            is_json: false,
            effort: CompareEffort::Full,
            stopwatch: Stopwatch::Wall,
            filters: Vec::new(),
            flood_keys: None,
            child: None,
        };
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            match word.as_str() {
                // Cargo passes this to every benchmark.
                "--bench" => {}
                "--json" => args.is_json = true,
                "--quick" => args.effort = CompareEffort::Quick,
                "--own-time" => args.stopwatch = Stopwatch::ThreadCpu,
                "flood" => {
                    let keys = words.next_if(|word| !word.starts_with('-'));
                    let keys = keys.map_or(Ok(FLOOD_KEYS), |keys| {
                        keys.parse().map_err(|_| format!("not a number of keys: {keys}"))
                    });
                    args.flood_keys = Some(keys?);
                }
                CHILD => args.child = Some(words.by_ref().collect()),
                word if word.starts_with('-') => return Err(format!("no such option: {word}").into()),
                _ => args.filters.push(word),
            }
        }
        if args.effort == CompareEffort::Quick {
            // Fewer keys would not fill the store.
            args.flood_keys = args.flood_keys.map(|keys| keys / 16);
        }
        Ok(args)
    }

    /// Whether a scenario is selected.
    pub(crate) fn wants(&self, name: &str) -> bool {
        if self.filters.is_empty() {
            self.flood_keys.is_none()
        } else {
            self.filters.iter().any(|filter| name.contains(filter.as_str()))
        }
    }
}
