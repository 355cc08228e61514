//! The files of the repository: what is committed, or would be.
//!
//! They are found by walking, not by asking git, so that a copy without history is as good as a clone. `.gitignore`
//! at the root is obeyed in the two forms it is written in here, `/path` and `*.suffix`; any other form is refused
//! rather than guessed at.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Outcome;

/// Every file of the repository, relative to its root, in order.
pub(crate) fn files(root: &Path) -> Outcome<Vec<PathBuf>> {
    let ignored = Ignored::parse(&fs::read_to_string(root.join(".gitignore"))?)?;
    let mut found = Vec::new();
    walk(root, Path::new(""), &ignored, &mut found)?;
    found.sort();
    Ok(found)
}

fn walk(root: &Path, folder: &Path, ignored: &Ignored, found: &mut Vec<PathBuf>) -> Outcome {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        let kind = entry.file_type()?;
        if path == Path::new(".git") || ignored.covers(&path) {
            continue;
        }
        if kind.is_dir() {
            walk(root, &path, ignored, found)?;
        } else if kind.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

/// What `.gitignore` leaves out.
#[derive(Debug, Default)]
struct Ignored {
    paths: Vec<PathBuf>,
    suffixes: Vec<String>,
}

impl Ignored {
    fn parse(text: &str) -> Result<Ignored, String> {
        let mut ignored = Ignored::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let plain = |rest: &str| !rest.contains(['*', '?', '[', '!']);
            match (line.strip_prefix('/'), line.strip_prefix('*')) {
                (Some(path), _) if plain(path) => ignored.paths.push(path.trim_end_matches('/').into()),
                (_, Some(suffix)) if plain(suffix) && !suffix.contains('/') => {
                    ignored.suffixes.push(suffix.to_owned());
                }
                _ => return Err(format!(".gitignore: write `/path` or `*.suffix`, not `{line}`")),
            }
        }
        Ok(ignored)
    }

    fn covers(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.paths.iter().any(|ignored| path == ignored)
            || self.suffixes.iter().any(|suffix| name.ends_with(suffix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_ignored_from_the_root_only() {
        let ignored = Ignored::parse("# builds\n/target/\n/fuzz/corpus\n*.snap.new\n").unwrap();
        assert!(ignored.covers(Path::new("target")));
        assert!(ignored.covers(Path::new("fuzz/corpus")));
        assert!(ignored.covers(Path::new("crates/a/x.snap.new")));
        assert!(!ignored.covers(Path::new("crates/target")));
    }

    #[test]
    fn other_forms_are_refused_by_name() {
        assert!(Ignored::parse("!keep").unwrap_err().contains("!keep"));
        assert!(Ignored::parse("build").is_err());
    }
}
