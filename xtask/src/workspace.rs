//! The workspace as cargo sees it: its crates, what they lean on, and where they are.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Outcome;

/// What `cargo metadata` says, as far as anybody here asks.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Where builds go.
    pub(crate) target: PathBuf,
    pub(crate) crates: Vec<Crate>,
}

/// A crate of this workspace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// Its folder, relative to the root.
    pub(crate) folder: PathBuf,
    pub(crate) leans_on: Vec<Dependency>,
}

/// What a crate leans on, in this workspace or outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// When a dependency is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Whenever the crate is used.
    Always,
    /// When its tests, examples or benches are.
    Development,
}

impl Workspace {
    /// Asks cargo about the workspace around the current directory.
    pub(crate) fn load() -> Outcome<Workspace> {
        let arguments = ["metadata", "--no-deps", "--format-version", "1", "--locked"];
        let output = Command::new("cargo").args(arguments).output()?;
        if !output.status.success() {
            return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        Workspace::read(&metadata).ok_or_else(|| "cargo metadata says something unexpected".into())
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
            leans_on: package["dependencies"]
                .as_array()?
                .iter()
                .map(Dependency::read)
                .collect::<Option<_>>()?,
        })
    }
}

impl Dependency {
    fn read(dependency: &Value) -> Option<Dependency> {
        // Absent means an ordinary dependency; one of the build script is needed just as often.
        let role = match dependency["kind"].as_str() {
            Some("dev") => Role::Development,
            _ => Role::Always,
        };
        Some(Dependency { name: dependency["name"].as_str()?.to_owned(), role })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_folders_and_roles_are_read() {
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
        assert_eq!(read.leans_on[0].role, Role::Always);
        assert_eq!(read.leans_on[1].role, Role::Development);
    }

    #[test]
    fn something_unexpected_is_not_an_empty_workspace() {
        assert!(Workspace::read(&serde_json::json!({"packages": []})).is_none());
    }
}
