//! Prefixes that texts have in common: a tree of pages, by the tokens whose keys and values they hold.
//!
//! A node is one whole page of tokens that follow its parent's. Whole pages are never written again, so texts share them
//! without a copy; what a text has beyond its last whole page is its own. The tree holds the newest prefixes that fit its
//! budget and gives up leaves, longest unused first.

use brasa_graph::CacheGroup;
use brasa_graph::step::{BlockTable, PAGE_POSITIONS, PageId};

use crate::kv::Sequence;
use crate::pages::Pages;

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// Freed places are reused.
    nodes: Vec<Option<Node>>,
    roots: Vec<usize>,
    most_nodes: usize,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug)]
struct Node {
    tokens: Box<[u32]>,
    parent: Option<usize>,
    children: Vec<usize>,
    /// The page of each cache group; `None` where the text it came from had released it.
    pages: Vec<Option<PageId>>,
    used: u64,
}

impl Prefixes {
    /// An empty tree of at most `most_nodes` pages of tokens.
    pub(crate) fn new(most_nodes: usize) -> Self {
        Self { most_nodes, ..Self::default() }
    }

    /// Nodes from the root on that hold the beginning of `tokens`, as many as a text can be resumed behind.
    pub(crate) fn find(&mut self, tokens: &[u32], groups: &[CacheGroup]) -> Vec<usize> {
        let mut path = self.walk(tokens);
        while !self.resumable(&path, groups) {
            path.pop();
        }
        self.touch(&path);
        path
    }

    /// The beginning of a text that `path` holds, every page of it held once more.
    pub(crate) fn share(&self, path: &[usize], groups: &[CacheGroup], pages: &mut [Pages]) -> Sequence {
        let nodes: Vec<&Node> = path.iter().filter_map(|&node| self.nodes[node].as_ref()).collect();
        let mut tables: Vec<BlockTable> = Vec::with_capacity(groups.len());
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
            tables.push(table);
        }
        let tokens = nodes.iter().flat_map(|node| node.tokens.iter().copied()).collect();
        Sequence { tokens, tables, shifted_from: None }
    }

    /// Keeps the whole pages of a text, of which the first `fresh` tokens are what a fresh run would compute.
    pub(crate) fn keep(&mut self, sequence: &Sequence, fresh: usize, pages: &mut [Pages]) {
        let whole = (fresh / PAGE_POSITIONS).min(self.most_nodes);
        let tokens = &sequence.tokens[..whole * PAGE_POSITIONS];
        let mut path = self.walk(tokens);
        for place in 0..whole {
            let of_group = |group: usize| sequence.tables[group][place];
            if let Some(&node) = path.get(place) {
                // Another text may have kept what this one's window had left behind, or the reverse.
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
                path.push(self.add(Node { tokens, parent, children: Vec::new(), pages: held, used: 0 }));
            }
        }
        self.touch(&path);
        while self.len() > self.most_nodes && self.give_up(pages) {}
    }

    /// Gives up the leaf that has been unused longest; false where there is none.
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
        let siblings = match node.parent.and_then(|parent| self.nodes[parent].as_mut()) {
            Some(parent) => &mut parent.children,
            None => &mut self.roots,
        };
        siblings.retain(|&child| child != place);
        true
    }

    fn len(&self) -> usize {
        self.nodes.iter().flatten().count()
    }

    /// The nodes that hold whole pages of `tokens`, from the root on.
    fn walk(&self, tokens: &[u32]) -> Vec<usize> {
        let (mut path, mut among) = (Vec::new(), &self.roots);
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

    /// True where every group still holds what the row behind `path` would see.
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
        let parent = node.parent;
        let place = self.nodes.iter().position(Option::is_none).unwrap_or(self.nodes.len());
        if place == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[place] = Some(node);
        match parent.and_then(|parent| self.nodes[parent].as_mut()) {
            Some(parent) => parent.children.push(place),
            None => self.roots.push(place),
        }
        place
    }
}

/// The first page that the row behind `pages` whole pages sees.
fn oldest_page(group: &CacheGroup, pages: usize) -> usize {
    group.spec.window.map_or(0, |window| (pages * PAGE_POSITIONS).saturating_sub(window)) / PAGE_POSITIONS
}
