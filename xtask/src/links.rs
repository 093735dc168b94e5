//! Links in the repository's pages lead to files and headings that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every link of every page below `root` that leads nowhere, as `PAGE: LINK: what is missing`.
pub fn broken(root: &Path) -> Vec<String> {
    let mut pages = Vec::new();
    find_pages(root, &mut pages);
    let problems = pages.iter().flat_map(|page| {
        let shown = page.strip_prefix(root).unwrap_or(page).display().to_string();
        let links = links(&read(page));
        links
            .into_iter()
            .filter_map(move |link| problem(page, &link).map(|problem| format!("{shown}: {link}: {problem}")))
    });
    problems.collect()
}

/// Markdown files below `folder`, but for hidden folders and build outputs.
fn find_pages(folder: &Path, pages: &mut Vec<PathBuf>) {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                find_pages(&path, pages);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Why a relative link on a page leads nowhere; `None` for links that lead somewhere and for addresses.
fn problem(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target =
        if path.is_empty() { page.to_owned() } else { page.parent().unwrap_or(Path::new("")).join(path) };
    if !target.exists() {
        return Some("no such file".to_owned());
    }
    let known = anchor.is_empty() || anchors(&read(&target)).contains(anchor);
    (!known).then(|| "no such heading".to_owned())
}

/// Lines outside fenced code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let targets = prose(text).flat_map(|line| line.split("](").skip(1));
    targets.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

/// Anchors of a page's headings, made as code hosts make them: lower case, punctuation dropped, spaces as hyphens.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_of_every_page_leads_somewhere() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut pages = Vec::new();
        find_pages(&root, &mut pages);
        assert!(pages.len() > 10, "pages were found: {pages:?}");
        assert_eq!(broken(&root), Vec::<String>::new());
    }

    #[test]
    fn broken_links_are_found() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        assert_eq!(links("a [b](c.md#d) and [e](f)\n```\n[g](h)\n```\n"), ["c.md#d", "f"]);
        assert_eq!(
            anchors("# Where *the* error, of int8\n"),
            BTreeSet::from(["where-the-error-of-int8".into()])
        );
        assert_eq!(problem(&page, "ARCHITECTURE.md#invariants"), None);
        assert_eq!(problem(&page, "https://example.org"), None);
        assert_eq!(problem(&page, "ARCHITECTURE.md#nothing-like-it"), Some("no such heading".into()));
        assert_eq!(problem(&page, "nothing.md"), Some("no such file".into()));
    }
}
