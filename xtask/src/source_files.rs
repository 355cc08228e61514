//! The source files of the repository: committed files and files that are not ignored.
//!
//! A directory walk finds them, not git, so that a copy without history works like a clone. The root `.gitignore` may contain
//! only `/path` and `*.suffix`; any other form is an error.

use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;

/// Every source file, relative to the root, sorted.
pub(crate) fn files(root: &Path) -> TaskResult<Vec<PathBuf>> {
    let ignored = Ignored::parse(&fs::read_to_string(root.join(".gitignore"))?)?;
    let mut found = Vec::new();
    walk(root, Path::new(""), &ignored, &mut found)?;
    found.sort();
    Ok(found)
}

fn walk(root: &Path, folder: &Path, ignored: &Ignored, found: &mut Vec<PathBuf>) -> TaskResult {
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

/// The patterns of `.gitignore`.
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
    fn path_pattern_matches_only_at_the_root() {
        let ignored = Ignored::parse("# builds\n/target/\n/fuzz/corpus\n*.snap.new\n").unwrap();
        assert!(ignored.covers(Path::new("target")));
        assert!(ignored.covers(Path::new("fuzz/corpus")));
        assert!(ignored.covers(Path::new("crates/a/x.snap.new")));
        assert!(!ignored.covers(Path::new("crates/target")));
    }

    #[test]
    fn other_patterns_are_errors() {
        assert!(Ignored::parse("!keep").unwrap_err().contains("!keep"));
        assert!(Ignored::parse("build").is_err());
    }
}
