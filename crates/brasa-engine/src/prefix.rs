//! Prefixes that texts have in common: a tree of pages for each scope, by the tokens whose keys and values they hold.
//!
//! A node is one whole page of tokens that follow its parent's. Whole pages are never written again, so texts share them
//! without a copy; positions beyond its last whole page are a text's own. The tree holds the newest prefixes that fit its
//! budget and gives up leaves, longest unused first.

use std::collections::HashMap;

use brasa_graph::CacheGroup;
use brasa_graph::step::{BlockTable, PAGE_POSITIONS, PageId};

use crate::CacheScope;
use crate::pages::Pages;
use crate::sequence::Sequence;

/// The trees.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// Freed places are reused.
    nodes: Vec<Option<Node>>,
    roots: HashMap<CacheScope, Vec<usize>>,
    most_nodes: usize,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug)]
struct Node {
    scope: CacheScope,
    tokens: Box<[u32]>,
    parent: Option<usize>,
    children: Vec<usize>,
    /// The page of each cache group; `None` if the text it came from had released it.
    pages: Vec<Option<PageId>>,
    used: u64,
}

impl Prefixes {
    /// An empty tree of at most `most_nodes` pages of tokens.
    pub(crate) fn new(most_nodes: usize) -> Self {
        Self { most_nodes, ..Self::default() }
    }

    /// Nodes of `scope`, from the root on, that hold the beginning of `tokens`, as many as a text can be resumed behind.
    pub(crate) fn find(&self, scope: CacheScope, tokens: &[u32], groups: &[CacheGroup]) -> Vec<usize> {
        let mut path = self.walk(scope, tokens);
        while !self.resumable(&path, groups) {
            path.pop();
        }
        path
    }

    /// Pages of a text that a sequence resumed behind `path` would hold, by cache group.
    pub(crate) fn pages_of<'a>(
        &'a self,
        path: &'a [usize],
        groups: &[CacheGroup],
        group: usize,
    ) -> impl Iterator<Item = PageId> + 'a {
        let oldest = oldest_page(&groups[group], path.len());
        path[oldest..]
            .iter()
            .filter_map(move |&node| self.nodes[node].as_ref().and_then(|node| node.pages[group]))
    }

    /// Pages of tokens with which another text could begin if a prompt of `length` tokens were kept as soon as it is
    /// computed; both begin with `common` tokens.
    pub(crate) fn after_prompt(&self, length: usize, common: usize, groups: &[CacheGroup]) -> usize {
        let most = (common / PAGE_POSITIONS).min(self.most_nodes);
        let held = |pages: usize, group: &CacheGroup| {
            let released =
                group.spec.window.map_or(0, |window| length.saturating_sub(window) / PAGE_POSITIONS);
            oldest_page(group, pages) >= released
        };
        (1..=most).rev().find(|&pages| groups.iter().all(|group| held(pages, group))).unwrap_or(0)
    }

    /// Gives `sequence`, which is empty, the beginning of a text that `path` holds. Every page of it has one more holder.
    pub(crate) fn share(
        &mut self,
        path: &[usize],
        groups: &[CacheGroup],
        pages: &mut [Pages],
        sequence: &mut Sequence,
    ) {
        self.touch(path);
        let nodes: Vec<&Node> = path.iter().filter_map(|&node| self.nodes[node].as_ref()).collect();
        for (group, pages) in pages.iter_mut().enumerate() {
            let oldest = oldest_page(&groups[group], path.len());
            let table: BlockTable = nodes
                .iter()
                .enumerate()
                .map(|(place, node)| node.pages[group].filter(|_| place >= oldest))
                .collect();
            for &page in table.iter().flatten() {
                pages.share(page);
            }
            sequence.tables[group] = table;
        }
        sequence.tokens = nodes.iter().flat_map(|node| node.tokens.iter().copied()).collect();
    }

    /// Keeps the whole pages among the first `fresh` tokens of a text, which a fresh run would compute alike.
    pub(crate) fn keep(&mut self, sequence: &Sequence, fresh: usize, pages: &mut [Pages]) {
        let whole = (fresh / PAGE_POSITIONS).min(self.most_nodes);
        let tokens = &sequence.tokens[..whole * PAGE_POSITIONS];
        let mut path = self.walk(sequence.scope, tokens);
        for place in 0..whole {
            let of_group = |group: usize| sequence.tables[group][place];
            if let Some(&node) = path.get(place) {
                // This text may still hold pages that the text before had released from its window.
                let Some(node) = &mut self.nodes[node] else { continue };
                for (group, held) in node.pages.iter_mut().enumerate() {
                    if held.is_none()
                        && let Some(page) = of_group(group)
                    {
                        pages[group].share(page);
                        *held = Some(page);
                    }
                }
            } else {
                let held: Vec<Option<PageId>> = (0..pages.len()).map(of_group).collect();
                for (page, pages) in held.iter().zip(&mut *pages) {
                    if let Some(page) = *page {
                        pages.share(page);
                    }
                }
                let tokens = tokens[place * PAGE_POSITIONS..][..PAGE_POSITIONS].into();
                let parent = place.checked_sub(1).map(|above| path[above]);
                let scope = sequence.scope;
                path.push(self.add(Node {
                    scope,
                    tokens,
                    parent,
                    children: Vec::new(),
                    pages: held,
                    used: 0,
                }));
            }
        }
        self.touch(&path);
        while self.len() > self.most_nodes && self.give_up(pages) {}
    }

    /// Gives up the leaf that has been unused longest; false if there is none.
    pub(crate) fn give_up(&mut self, pages: &mut [Pages]) -> bool {
        let leaves = self.nodes.iter().enumerate().filter_map(|(place, node)| {
            node.as_ref().filter(|node| node.children.is_empty()).map(|node| (node.used, place))
        });
        let Some((_, place)) = leaves.min() else { return false };
        let Some(node) = self.nodes[place].take() else { return false };
        for (page, pages) in node.pages.iter().zip(pages) {
            if let Some(page) = *page {
                pages.release(page);
            }
        }
        if let Some(parent) = node.parent.and_then(|parent| self.nodes[parent].as_mut()) {
            parent.children.retain(|&child| child != place);
        } else if let Some(roots) = self.roots.get_mut(&node.scope) {
            roots.retain(|&root| root != place);
            if roots.is_empty() {
                self.roots.remove(&node.scope);
            }
        }
        true
    }

    fn len(&self) -> usize {
        self.nodes.iter().flatten().count()
    }

    /// The nodes of `scope` that hold whole pages of `tokens`, from the root on.
    fn walk(&self, scope: CacheScope, tokens: &[u32]) -> Vec<usize> {
        let mut path = Vec::new();
        let Some(mut among) = self.roots.get(&scope) else { return path };
        for page in tokens.chunks_exact(PAGE_POSITIONS) {
            let found = among.iter().find_map(|&place| {
                let node = self.nodes[place].as_ref()?;
                (*node.tokens == *page).then_some((place, node))
            });
            let Some((place, node)) = found else { break };
            path.push(place);
            among = &node.children;
        }
        path
    }

    /// True if every group still holds the pages that the row behind `path` would see.
    fn resumable(&self, path: &[usize], groups: &[CacheGroup]) -> bool {
        groups.iter().enumerate().all(|(group, spec)| {
            path[oldest_page(spec, path.len())..]
                .iter()
                .all(|&node| self.nodes[node].as_ref().is_some_and(|node| node.pages[group].is_some()))
        })
    }

    fn touch(&mut self, path: &[usize]) {
        self.clock += 1;
        for &node in path {
            if let Some(node) = &mut self.nodes[node] {
                node.used = self.clock;
            }
        }
    }

    fn add(&mut self, node: Node) -> usize {
        let (parent, scope) = (node.parent, node.scope);
        let place = self.nodes.iter().position(Option::is_none).unwrap_or(self.nodes.len());
        if place == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[place] = Some(node);
        match parent.and_then(|parent| self.nodes[parent].as_mut()) {
            Some(parent) => parent.children.push(place),
            None => self.roots.entry(scope).or_default().push(place),
        }
        place
    }
}

/// The first page that the row behind `pages` whole pages sees.
fn oldest_page(group: &CacheGroup, pages: usize) -> usize {
    group.spec.window.map_or(0, |window| (pages * PAGE_POSITIONS).saturating_sub(window)) / PAGE_POSITIONS
}
