//! Links between our own pages lead somewhere.
//!
//! Only where a link leads is judged, and only inside this repository: the web is not ours to keep.

use std::path::{Component, Path, PathBuf};

use super::{Breach, Text};

const RESOLVES: &str = "every relative link leads to a file";

/// The links of a page that lead nowhere; `exists` is asked about paths relative to the root.
pub(super) fn breaches(text: &Text, exists: &dyn Fn(&Path) -> bool) -> Vec<Breach> {
    let folder = text.path.parent().unwrap_or(Path::new(""));
    let mut breaches = Vec::new();
    for (line, target) in targets(&text.content) {
        let Some(path) = local_path(target) else { continue };
        if !resolve(folder, path).is_some_and(|path| exists(&path)) {
            breaches.push(Breach::at(&text.path, line, RESOLVES, target));
        }
    }
    breaches
}

/// Where each link of a page leads, with its line; what is in code is not a link.
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

/// The path that a target names in this repository; `None` if it leads elsewhere.
fn local_path(target: &str) -> Option<&str> {
    let path = target.trim_matches(['<', '>']).split(['#', '?']).next()?;
    let elsewhere = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
    (!elsewhere).then_some(path)
}

/// The path as seen from the root; `None` if it leaves the repository.
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
        breaches(&text("docs/index.md", content), &exists).into_iter().map(|breach| breach.found).collect()
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        let page =
            "[a](guide.md) [b](../README.md#top) [c](decisions/) [d](/README.md \"title\")\n[e]: guide.md";
        assert_eq!(dead(page), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        assert_eq!(dead("[a](gone.md) and [b](../../outside.md)"), ["gone.md", "../../outside.md"]);
        assert_eq!(dead("see [`code`](gone.md)"), ["gone.md"]);
        assert_eq!(dead("[e]: gone.md"), ["gone.md"]);
    }

    #[test]
    fn the_web_anchors_and_code_are_not_judged() {
        assert_eq!(dead("[a](https://example.com/x) [b](#here) [c](mailto:a@example.com)"), [""; 0]);
        assert_eq!(dead("`[a](gone.md)`\n```\n[b](gone.md)\n```"), [""; 0]);
    }
}
