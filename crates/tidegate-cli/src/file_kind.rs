//! What a file is for.
//!
//! The name of a file says nothing reliable, so the names of its fields decide. A file is of the kind that has most of them, and of
//! the first kind in a tie.

use tidegate_config::{MappingSchema, field_names};
use tidegate_cpu::settings::CPU;
use tidegate_gateway::settings::GATEWAY;
use tidegate_server::settings::SETTINGS;

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Limits and the server that keeps them: `tidegate_server::settings::read`.
    Settings,
    /// The CPU governor: `tidegate_cpu::settings::read_cpu`.
    Cpu,
    /// The gateway: `tidegate_gateway::settings::read_gateway`.
    Gateway,
}

/// The kinds, and the fields that each of them has. A file is of the first kind if no other has more of its fields.
static KINDS: [(FileKind, &MappingSchema); 3] =
    [(FileKind::Settings, &SETTINGS), (FileKind::Cpu, &CPU), (FileKind::Gateway, &GATEWAY)];

impl FileKind {
    /// The kind of a file with this content. Content that cannot be parsed counts as settings, whose reader reports what is wrong.
    pub(crate) fn of(bytes: &[u8]) -> FileKind {
        let fields = field_names(bytes);
        let count_known =
            |schema: &MappingSchema| fields.iter().filter(|field| schema.field(field).is_some()).count();
        let mut best = (FileKind::Settings, 0);
        for (kind, schema) in KINDS.iter() {
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
    fn most_fields_decide() {
        for (text, kind) in [
            ("", FileKind::Settings),
            ("a", FileKind::Settings),
            ("[1, 2]", FileKind::Settings),
            ("a: [", FileKind::Settings),
            ("\u{7}", FileKind::Settings),
            ("nobody: knows", FileKind::Settings),
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
