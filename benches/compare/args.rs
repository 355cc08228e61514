//! What was asked for on the command line.

use tidegate_bench::Watch;

use crate::Failure;
use crate::report::Format;

/// Makes this process the child that measures one case: the next words say which.
pub(crate) const CHILD: &str = "--child";

/// How many keys a flood has.
const FLOOD: u64 = 50_000_000;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) format: Format,
    pub(crate) effort: Effort,
    pub(crate) watch: Watch,
    /// Which scenarios; all if there are none.
    filters: Vec<String>,
    pub(crate) flood: bool,
    pub(crate) flood_keys: u64,
    /// The one case that this process measures, and nothing else.
    pub(crate) child: Option<Vec<String>>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Enough to be believed.
    Full,
    /// Enough to see that it works.
    Quick,
}

impl Effort {
    /// How often every subject has its turn.
    pub(crate) fn rounds(self) -> usize {
        match self {
            Effort::Full => 9,
            Effort::Quick => 3,
        }
    }

    /// This much of something, or a fiftieth.
    pub(crate) fn of(self, full: u64) -> u64 {
        match self {
            Effort::Full => full,
            Effort::Quick => full / 50,
        }
    }
}

impl Args {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Args, Failure> {
        let mut args = Args {
            format: Format::Tables,
            effort: Effort::Full,
            watch: Watch::Wall,
            filters: Vec::new(),
            flood: false,
            flood_keys: FLOOD,
            child: None,
        };
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            match word.as_str() {
                // Cargo says so to every benchmark.
                "--bench" => {}
                "--json" => args.format = Format::Json,
                "--quick" => args.effort = Effort::Quick,
                "--own-time" => args.watch = Watch::Own,
                "flood" => {
                    args.flood = true;
                    if let Some(keys) = words.next_if(|word| !word.starts_with('-')) {
                        args.flood_keys =
                            keys.parse().map_err(|_| format!("not a number of keys: {keys}"))?;
                    }
                }
                CHILD => args.child = Some(words.by_ref().collect()),
                word if word.starts_with('-') => return Err(format!("no such option: {word}").into()),
                _ => args.filters.push(word),
            }
        }
        Ok(args)
    }

    /// Whether the scenario of this name is wanted.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }
}
