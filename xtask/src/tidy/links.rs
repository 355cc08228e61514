//! Relative links between pages resolve.
//!
//! Only links inside this repository are checked. Web links and anchors are not.

use std::path::{Component, Path, PathBuf};

use super::{SourceText, Violation};

const RESOLVES: &str = "every relative link resolves to a file";

/// The dead links of a page. `exists` takes paths relative to the root.
pub(super) fn violations(text: &SourceText, exists: &dyn Fn(&Path) -> bool) -> Vec<Violation> {
    let folder = text.path.parent().unwrap_or(Path::new(""));
    let mut violations = Vec::new();
    for (line, target) in targets(&text.content) {
        let Some(path) = local_path(target) else { continue };
        if !resolve(folder, path).is_some_and(|path| exists(&path)) {
            violations.push(Violation::at(&text.path, line, RESOLVES, target));
        }
    }
    violations
}

/// The link targets of a page with their lines. Code is skipped.
fn targets(page: &str) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    let mut in_fence = false;
    for (index, line) in page.lines().enumerate() {
        let is_fence = ["```", "~~~"].iter().any(|fence| line.trim_start().starts_with(fence));
        in_fence ^= is_fence;
        if !in_fence && !is_fence {
            targets.extend(line_targets(line).into_iter().map(|target| (index + 1, target)));
        }
    }
    targets
}

/// `[text](target "title")` and `[name]: target`, outside of `code`.
fn line_targets(line: &str) -> Vec<&str> {
    // Every second part between backticks is code.
    let mut targets: Vec<&str> = Vec::new();
    let mut in_code = false;
    for part in line.split('`') {
        if !in_code {
            targets.extend(part.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()));
        }
        in_code = !in_code;
    }
    if line.starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        targets.extend(target.split_whitespace().next());
    }
    targets
}

/// The path of a target in this repository; `None` for other targets.
fn local_path(target: &str) -> Option<&str> {
    let path = target.trim_matches(['<', '>']).split(['#', '?']).next()?;
    let elsewhere = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
    (!elsewhere).then_some(path)
}

/// The path relative to the root; `None` if it leaves the repository.
fn resolve(folder: &Path, path: &str) -> Option<PathBuf> {
    let (mut resolved, path) = match path.strip_prefix('/') {
        Some(from_root) => (PathBuf::new(), from_root),
        None => (folder.to_owned(), path),
    };
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => {
                if !resolved.pop() {
                    return None;
                }
            }
            Component::Normal(name) => resolved.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Some(resolved)
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;

    fn dead(content: &str) -> Vec<String> {
        let there = ["docs/guide.md", "README.md", "docs/decisions"];
        let exists = |path: &Path| there.iter().any(|file| Path::new(file) == path);
        violations(&text("docs/index.md", content), &exists)
            .into_iter()
            .map(|violation| violation.found)
            .collect()
    }

    #[test]
    fn existing_targets_are_allowed() {
        let page =
            "[a](guide.md) [b](../README.md#top) [c](decisions/) [d](/README.md \"title\")\n[e]: guide.md";
        assert_eq!(dead(page), [""; 0]);
    }

    #[test]
    fn missing_targets_are_violations() {
        assert_eq!(dead("[a](gone.md) and [b](../../outside.md)"), ["gone.md", "../../outside.md"]);
        assert_eq!(dead("see [`code`](gone.md)"), ["gone.md"]);
        assert_eq!(dead("[e]: gone.md"), ["gone.md"]);
    }

    #[test]
    fn web_links_anchors_and_code_are_skipped() {
        assert_eq!(dead("[a](https://example.com/x) [b](#here) [c](mailto:a@example.com)"), [""; 0]);
        assert_eq!(dead("`[a](gone.md)`\n```\n[b](gone.md)\n```"), [""; 0]);
    }
}
