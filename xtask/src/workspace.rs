//! The workspace according to `cargo metadata`: crates, dependencies, folders.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::TaskResult;

/// The used part of `cargo metadata`.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// The build directory.
    pub(crate) target: PathBuf,
    pub(crate) crates: Vec<Crate>,
}

/// A crate of this workspace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// Relative to the root.
    pub(crate) folder: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency, in this workspace or outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: DependencyKind,
}

/// When a dependency is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DependencyKind {
    /// By every build of the crate.
    Normal,
    /// By its tests, examples or benches.
    Development,
}

impl Workspace {
    /// Runs `cargo metadata` in the current directory.
    pub(crate) fn load() -> TaskResult<Workspace> {
        let arguments = ["metadata", "--no-deps", "--format-version", "1", "--locked"];
        let output = Command::new("cargo").args(arguments).output()?;
        if !output.status.success() {
            return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        Workspace::read(&metadata).ok_or_else(|| "cargo metadata has an unexpected form".into())
    }

    fn read(metadata: &Value) -> Option<Workspace> {
        let root = PathBuf::from(metadata["workspace_root"].as_str()?);
        let target = PathBuf::from(metadata["target_directory"].as_str()?);
        let packages = metadata["packages"].as_array()?.iter();
        let crates = packages.map(|package| Crate::read(package, &root)).collect::<Option<_>>()?;
        Some(Workspace { root, target, crates })
    }
}

impl Crate {
    fn read(package: &Value, root: &Path) -> Option<Crate> {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        Some(Crate {
            name: package["name"].as_str()?.to_owned(),
            description: package["description"].as_str().map(str::to_owned),
            folder: manifest.parent()?.strip_prefix(root).ok()?.to_owned(),
            dependencies: package["dependencies"]
                .as_array()?
                .iter()
                .map(Dependency::read)
                .collect::<Option<_>>()?,
        })
    }
}

impl Dependency {
    fn read(dependency: &Value) -> Option<Dependency> {
        // Absent means a normal dependency. Build dependencies count as normal.
        let kind = match dependency["kind"].as_str() {
            Some("dev") => DependencyKind::Development,
            _ => DependencyKind::Normal,
        };
        Some(Dependency { name: dependency["name"].as_str()?.to_owned(), kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_folders_and_dependency_kinds_are_parsed() {
        let metadata = serde_json::json!({
            "workspace_root": "/r",
            "target_directory": "/t",
            "packages": [{
                "name": "a", "description": null, "manifest_path": "/r/crates/a/Cargo.toml",
                "dependencies": [{"name": "b", "kind": null}, {"name": "c", "kind": "dev"}],
            }],
        });
        let workspace = Workspace::read(&metadata).unwrap();
        let read = &workspace.crates[0];
        assert_eq!((read.name.as_str(), read.folder.as_path()), ("a", Path::new("crates/a")));
        assert_eq!(read.dependencies[0].kind, DependencyKind::Normal);
        assert_eq!(read.dependencies[1].kind, DependencyKind::Development);
    }

    #[test]
    fn unexpected_metadata_is_not_an_empty_workspace() {
        assert!(Workspace::read(&serde_json::json!({"packages": []})).is_none());
    }
}
