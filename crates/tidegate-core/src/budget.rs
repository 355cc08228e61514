//! Budgets: an average that may not be exceeded over a window, in units per time.

/// Billionths in a unit.
const BILLION: u64 = 1_000_000_000;

/// How fast something is used: whole billionths of a unit. For a processor the unit is one percent of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

impl Rate {
    /// Nothing is used.
    pub const ZERO: Rate = Rate(0);

    /// This many billionths of a unit.
    pub const fn from_billionths(billionths: u64) -> Rate {
        Rate(billionths)
    }

    /// This many units.
    pub const fn from_units(units: u32) -> Rate {
        Rate(units as u64 * BILLION)
    }

    /// Billionths of a unit.
    pub const fn billionths(self) -> u64 {
        self.0
    }
}
