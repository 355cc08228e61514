//! What a file is for.
//!
//! Files of several programs look alike, and people call them what they like; what tells them apart are the names of their fields. A
//! file is of the kind that knows most of its fields, and of the first kind if none knows more than another.

use super::diagnostic::Report;
use super::fields::{CPU, SETTINGS, Table};
use super::gateway::GATEWAY;
use super::source::Source;
use super::tree::{Kind, Node};
use super::{decoded, parsed};

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// Limits and the server that keeps them: [`read`](super::read).
    Settings,
    /// The CPU governor: [`read_cpu`](super::read_cpu).
    Cpu,
    /// The gateway: [`read_gateway`](super::read_gateway).
    Gateway,
}

/// The kinds, and the fields that each of them knows. The first one is what is not recognised.
const KINDS: [(FileKind, &Table); 3] =
    [(FileKind::Settings, &SETTINGS), (FileKind::Cpu, &CPU), (FileKind::Gateway, &GATEWAY)];

impl FileKind {
    /// What these bytes are for. Bytes that cannot be read at all are settings: whoever reads them says what is wrong.
    ///
    /// ```
    /// use tidegate::file::FileKind;
    ///
    /// assert_eq!(FileKind::of(b"limits: []"), FileKind::Settings);
    /// assert_eq!(FileKind::of(b"avg_load_limit_percent: 30"), FileKind::Cpu);
    /// assert_eq!(FileKind::of(b"server: {port: 9848}\nroutes: []"), FileKind::Gateway);
    /// ```
    pub fn of(bytes: &[u8]) -> FileKind {
        let Ok(text) = decoded("", bytes) else { return FileKind::Settings };
        let source = Source::new("", &text);
        let tree = parsed(&mut Report::new(&source));
        tree.map_or(FileKind::Settings, |tree| FileKind::of_tree(&tree))
    }

    fn of_tree(tree: &Node) -> FileKind {
        let Kind::Map(fields) = &tree.kind else { return FileKind::Settings };
        let known =
            |table: &Table| fields.iter().filter(|field| table.names().any(|name| name == field.key)).count();
        let mut best = (FileKind::Settings, 0);
        for (kind, table) in KINDS {
            if known(table) > best.1 {
                best = (kind, known(table));
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
