//! The kind of a settings file, detected from its fields.
//!
//! File names are not reliable. The kind with the most known fields wins; in a tie the first kind wins.

use tidegate_config::{MappingSchema, field_names};
use tidegate_cpu::settings::CPU;
use tidegate_gateway::settings::GATEWAY;
use tidegate_server::settings::SETTINGS;

/// The kind of a settings file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Settings of the server and its limits: `tidegate_server::settings::read`.
    Settings,
    /// Settings of the CPU governor: `tidegate_cpu::settings::read_cpu`.
    Cpu,
    /// Settings of the gateway: `tidegate_gateway::settings::read_gateway`.
    Gateway,
}

/// The kinds with their fields, in order of preference.
static KINDS: [(FileKind, &MappingSchema); 3] =
    [(FileKind::Settings, &SETTINGS), (FileKind::Cpu, &CPU), (FileKind::Gateway, &GATEWAY)];

impl FileKind {
    /// Detects the kind. Content that cannot be parsed counts as server settings, whose parser reports the errors.
    pub(crate) fn of(bytes: &[u8]) -> FileKind {
        let fields = field_names(bytes);
        let count_known =
            |schema: &MappingSchema| fields.iter().filter(|field| schema.field(field).is_some()).count();
        let mut best = (FileKind::Settings, 0);
        for (kind, schema) in &KINDS {
            let known = count_known(schema);
            if known > best.1 {
                best = (*kind, known);
            }
        }
        best.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_with_most_known_fields_wins() {
        for (text, kind) in [
            ("", FileKind::Settings),
            ("a", FileKind::Settings),
            ("[1, 2]", FileKind::Settings),
            ("a: [", FileKind::Settings),
            ("\u{7}", FileKind::Settings),
            ("unknown: field", FileKind::Settings),
            ("server: {}\nlimits: []", FileKind::Settings),
            ("server: {}", FileKind::Settings),
            ("server: {}\nbackends: []", FileKind::Gateway),
            ("{\"time_zone\": \"UTC\"}", FileKind::Cpu),
            ("avg_load_limit_percent: x\nmax_load: 7\nunobserved: zero", FileKind::Cpu),
            ("limits: []\ntime_zone: UTC", FileKind::Settings),
            ("limits: []\ntime_zone: UTC\nreserve_percent: 1", FileKind::Cpu),
        ] {
            assert_eq!(FileKind::of(text.as_bytes()), kind, "{text}");
        }
        assert_eq!(FileKind::of(b"\xff"), FileKind::Settings);
    }
}
