//! Prefixes that texts have in common: a tree of pages for each scope, keyed by the tokens whose keys and values the pages hold.
//!
//! A node is a page of tokens that follow its parent's. Whole pages are never written again, so texts share them without a copy.
//! A text that differs from a node within its page gets a copy of the page. A leaf may hold less than a page: the end of a text
//! that has ended. The tree holds the newest prefixes that fit its budget and gives up leaves, longest unused first.
//!
//! With recurrent states, a text can be resumed only at a length whose states are kept. So nodes also hold states,
//! after a few numbers of tokens of their texts, within a budget of their own. Tokens behind the last kept states are
//! computed again.

use std::collections::HashMap;

use brasa_graph::CacheGroup;
use brasa_graph::step::{BlockTable, PAGE_POSITIONS, PageId};

use crate::CacheScope;
use crate::held_states::HeldState;
use crate::pages::Pages;
use crate::sequence::{Sequence, common_tokens, oldest_page};

/// The trees of kept prefixes, one for each scope.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// Nodes by place; the places of freed nodes are reused.
    nodes: Vec<Option<Node>>,
    free: Vec<usize>,
    roots: HashMap<CacheScope, Vec<usize>>,
    most_nodes: usize,
    /// Most state pages that nodes hold; `None` for a model without recurrent states.
    most_states: Option<usize>,
    /// Distance between two lengths of a text whose states are kept, in pages of 256 tokens.
    interval_pages: usize,
    /// Number of pages of each cache group that nodes hold. With recurrent states, one more entry counts state pages.
    held: Vec<usize>,
    /// Nodes that were given up for want of room.
    evicted: u64,
    /// A counter of uses, as the time of a node's last use.
    clock: u64,
}

#[derive(Debug)]
struct Node {
    scope: CacheScope,
    /// The tokens of a page; fewer in a leaf.
    tokens: Box<[u32]>,
    parent: Option<usize>,
    children: Vec<usize>,
    /// The page of each cache group; `None` if the text it came from had released it.
    pages: Vec<Option<PageId>>,
    /// Kept states within the node's page: the number of the node's tokens that they come after, and the state page.
    states: Vec<(usize, PageId)>,
    used: u64,
}

/// The longest beginning of a text that a tree holds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Nodes from the root on. The last one may hold more tokens than the text shares.
    path: Vec<usize>,
    /// Number of tokens of the beginning.
    pub(crate) tokens: usize,
    /// The states after these tokens; `None` for a model without recurrent states.
    pub(crate) state: Option<HeldState>,
}

impl Prefixes {
    /// Empty trees that hold up to `budget_bytes` of pages.
    ///
    /// `page_bytes` has the bytes of a page of each of `cache_groups` cache groups. For a model with recurrent states,
    /// one more entry has the bytes of a state page, and states get half of the budget.
    pub(crate) fn new(
        budget_bytes: u64,
        page_bytes: &[u64],
        cache_groups: usize,
        interval_pages: usize,
    ) -> Self {
        let held = vec![0; page_bytes.len()];
        let (kv, states) = page_bytes.split_at(cache_groups);
        let of = |bytes: u64, each: u64| usize::try_from(bytes / each.max(1)).unwrap_or(usize::MAX);
        let Some(&state_page_bytes) = states.first() else {
            return Self {
                most_nodes: of(budget_bytes, kv.iter().sum()),
                interval_pages,
                held,
                ..Self::default()
            };
        };
        let most_states = of(budget_bytes / 2, state_page_bytes);
        // A text could not be resumed within further pages, for want of states.
        let most_nodes =
            of(budget_bytes / 2, kv.iter().sum()).min(most_states.saturating_mul(interval_pages));
        Self { most_nodes, most_states: Some(most_states), interval_pages, held, ..Self::default() }
    }

    /// False if the budget holds no page, so that nothing is ever kept.
    pub(crate) fn keeps_any(&self) -> bool {
        self.most_nodes > 0
    }

    /// Pages of each cache group that the trees hold.
    pub(crate) fn held(&self) -> &[usize] {
        &self.held
    }

    /// Nodes that were given up for want of room, so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The longest beginning of `tokens` behind which a text of `scope` can be resumed.
    pub(crate) fn find(&self, scope: CacheScope, tokens: &[u32], groups: &[CacheGroup]) -> Found {
        let mut path = self.walk(scope, tokens);
        let mut length = path.len() * PAGE_POSITIONS;
        let rest = &tokens[length..];
        let parts = self.children(scope, path.last().copied()).iter().filter_map(|&place| {
            let common = common_tokens(&self.nodes[place].as_ref()?.tokens, rest);
            (common > 0).then_some((common, place))
        });
        if let Some((common, place)) = parts.max() {
            path.push(place);
            length += common;
        }
        if self.most_states.is_some() {
            return self.find_state(path, length, groups);
        }
        while !self.resumable(&path, length, groups) {
            path.pop();
            length = path.len() * PAGE_POSITIONS;
        }
        Found { path, tokens: length, state: None }
    }

    /// The longest beginning, up to `length` tokens, of the text of `path` at which states are kept.
    fn find_state(&self, mut path: Vec<usize>, length: usize, groups: &[CacheGroup]) -> Found {
        while let Some(&last) = path.last() {
            let start = (path.len() - 1) * PAGE_POSITIONS;
            let states = self.nodes[last].as_ref().map_or(&[][..], |node| &node.states);
            let mut lengths: Vec<(usize, PageId)> =
                states.iter().map(|&(within, page)| (start + within, page)).collect();
            lengths.sort_unstable();
            let is_held = |&&(at, _): &&(usize, PageId)| at <= length && self.resumable(&path, at, groups);
            if let Some(&(length, page)) = lengths.iter().rev().find(is_held) {
                let state = Some(HeldState { length, page, ends_prompt: true });
                return Found { path, tokens: length, state };
            }
            path.pop();
        }
        Found::default()
    }

    /// Whole pages of a text that a sequence resumed behind `found` would share, by cache group.
    pub(crate) fn pages_of<'a>(
        &'a self,
        found: &'a Found,
        groups: &[CacheGroup],
        group: usize,
    ) -> impl Iterator<Item = PageId> + 'a {
        let oldest = oldest_page(&groups[group], found.tokens);
        let whole = found.path[..found.tokens / PAGE_POSITIONS].get(oldest..).unwrap_or_default();
        whole.iter().filter_map(move |&node| self.nodes[node].as_ref().and_then(|node| node.pages[group]))
    }

    /// Number of whole pages that another text could take from the cache if a prompt of `length` tokens were kept as soon as it
    /// is computed. The two texts share their first `common` tokens.
    pub(crate) fn after_prompt(&self, length: usize, common: usize, groups: &[CacheGroup]) -> usize {
        let most = (common / PAGE_POSITIONS).min(self.most_nodes) / self.interval() * self.interval();
        let held = |pages: usize, group: &CacheGroup| {
            oldest_page(group, pages * PAGE_POSITIONS) >= oldest_page(group, length)
        };
        let lengths = (1..=most).rev().filter(|pages| pages.is_multiple_of(self.interval()));
        lengths.into_iter().find(|&pages| groups.iter().all(|group| held(pages, group))).unwrap_or(0)
    }

    /// Distance, in pages of 256 tokens, between lengths at which a kept text can be resumed for certain.
    fn interval(&self) -> usize {
        if self.most_states.is_some() { self.interval_pages.max(1) } else { 1 }
    }

    /// Gives the empty `sequence` the beginning that was `found`. Its pages get one more holder.
    pub(crate) fn share(
        &mut self,
        found: &Found,
        groups: &[CacheGroup],
        pages: &mut [Pages],
        sequence: &mut Sequence,
    ) {
        self.touch(&found.path);
        let nodes: Vec<&Node> = found.path.iter().filter_map(|&node| self.nodes[node].as_ref()).collect();
        for ((group, spec), pages) in groups.iter().enumerate().zip(pages) {
            let oldest = oldest_page(spec, found.tokens);
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
        sequence.tokens.truncate(found.tokens);
    }

    /// Keeps the whole pages among the first `fresh` tokens of a text, which a fresh run would compute equally. If the text
    /// `ends` and is never written again, its last partial page is kept too.
    pub(crate) fn keep(&mut self, sequence: &Sequence, fresh: usize, ends: bool, pages: &mut [Pages]) {
        let whole = (fresh / PAGE_POSITIONS).min(self.most_nodes);
        let mut path = self.walk(sequence.scope, &sequence.tokens[..whole * PAGE_POSITIONS]);
        for (place, &node) in path.iter().enumerate() {
            // This text may still hold pages that the text before had released from its window.
            let Some(held) = &mut self.nodes[node] else { continue };
            for (group, held) in held.pages.iter_mut().enumerate() {
                if held.is_none()
                    && let Some(page) = sequence.tables[group][place]
                {
                    pages[group].share(page);
                    self.held[group] += 1;
                    *held = Some(page);
                }
            }
            self.hold_states(sequence, place, node, fresh, pages);
        }
        for place in path.len()..whole {
            path.push(self.hold(sequence, place, PAGE_POSITIONS, path.last().copied(), pages));
        }
        let rest = fresh - whole * PAGE_POSITIONS;
        if ends && (1..PAGE_POSITIONS).contains(&rest) && whole < self.most_nodes {
            let tokens = &sequence.tokens[whole * PAGE_POSITIONS..fresh];
            let above = path.last().copied();
            let known = self.children(sequence.scope, above).iter().copied().find(|&place| {
                self.nodes[place].as_ref().is_some_and(|node| node.tokens.starts_with(tokens))
            });
            path.push(match known {
                Some(node) => {
                    self.hold_states(sequence, whole, node, fresh, pages);
                    node
                }
                None => self.hold(sequence, whole, rest, above, pages),
            });
        }
        self.touch(&path);
        while self.len() > self.most_nodes && self.give_up(pages) {}
        while self.most_states.is_some_and(|most| self.states_held() > most) && self.give_up_states(pages) {}
    }

    /// Number of state pages that nodes hold.
    fn states_held(&self) -> usize {
        self.most_states.and(self.held.last().copied()).unwrap_or(0)
    }

    /// Adds states of `sequence` to `node`, which holds page number `place` of its text: those within this page, up to
    /// the first `fresh` tokens of the text.
    fn hold_states(
        &mut self,
        sequence: &Sequence,
        place: usize,
        node: usize,
        fresh: usize,
        pages: &mut [Pages],
    ) {
        let (Some(_), Some(node)) = (self.most_states, &mut self.nodes[node]) else { return };
        let group = self.held.len() - 1;
        for state in sequence.states.kept() {
            let Some(within) = state.length.checked_sub(place * PAGE_POSITIONS) else { continue };
            let is_within = (1..=node.tokens.len()).contains(&within) && state.length <= fresh;
            if is_within && node.states.iter().all(|&(at, _)| at != within) {
                pages[group].share(state.page);
                self.held[group] += 1;
                node.states.push((within, state.page));
            }
        }
    }

    /// Gives up one kept state, of the node with states that has been unused longest. Returns false if no node has
    /// states.
    pub(crate) fn give_up_states(&mut self, pages: &mut [Pages]) -> bool {
        let group = self.held.len() - 1;
        let with_states = self.nodes.iter_mut().flatten().filter(|node| !node.states.is_empty());
        let Some(node) = with_states.min_by_key(|node| node.used) else { return false };
        let (_, page) = node.states.remove(0);
        pages[group].release(page);
        self.held[group] -= 1;
        true
    }

    /// Forgets a text, except the beginning that it shares with other kept texts.
    pub(crate) fn forget(&mut self, scope: CacheScope, tokens: &[u32], pages: &mut [Pages]) {
        let mut path = self.walk(scope, tokens);
        let rest = &tokens[path.len() * PAGE_POSITIONS..];
        let is_end =
            |&&place: &&usize| self.nodes[place].as_ref().is_some_and(|node| rest.starts_with(&node.tokens));
        if !rest.is_empty() {
            path.extend(self.children(scope, path.last().copied()).iter().find(is_end).copied());
        }
        while let Some(place) = path.pop() {
            if self.nodes[place].as_ref().is_some_and(|node| !node.children.is_empty()) {
                break;
            }
            self.remove(place, pages);
        }
    }

    /// Gives up the leaf that has been unused longest; false if there is none.
    pub(crate) fn give_up(&mut self, pages: &mut [Pages]) -> bool {
        let leaves = self.nodes.iter().enumerate().filter_map(|(place, node)| {
            node.as_ref().filter(|node| node.children.is_empty()).map(|node| (node.used, place))
        });
        let Some((_, place)) = leaves.min() else { return false };
        self.evicted += 1;
        self.remove(place, pages);
        true
    }

    fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// The children of node `above`, or the roots of `scope` if `above` is `None`.
    fn children(&self, scope: CacheScope, above: Option<usize>) -> &[usize] {
        match above {
            Some(above) => self.nodes[above].as_ref().map_or(&[], |node| &node.children),
            None => self.roots.get(&scope).map_or(&[], |roots| roots),
        }
    }

    /// The nodes of `scope` that hold whole pages of `tokens`, from the root on.
    fn walk(&self, scope: CacheScope, tokens: &[u32]) -> Vec<usize> {
        let mut path: Vec<usize> = Vec::new();
        for page in tokens.chunks_exact(PAGE_POSITIONS) {
            let among = self.children(scope, path.last().copied());
            let is_page = |&&place: &&usize| self.nodes[place].as_ref().is_some_and(|n| *n.tokens == *page);
            let Some(&place) = among.iter().find(is_page) else { break };
            path.push(place);
        }
        path
    }

    /// True if every group still holds the pages that are visible to the row at index `length`.
    fn resumable(&self, path: &[usize], length: usize, groups: &[CacheGroup]) -> bool {
        groups.iter().enumerate().all(|(group, spec)| {
            path.iter()
                .skip(oldest_page(spec, length))
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

    /// Adds a node below `parent` for the page at `place` of a text, whose first `rows` positions are used. Leaves that hold a
    /// beginning of it are removed.
    fn hold(
        &mut self,
        sequence: &Sequence,
        place: usize,
        rows: usize,
        parent: Option<usize>,
        pages: &mut [Pages],
    ) -> usize {
        let tokens: Box<[u32]> = sequence.tokens[place * PAGE_POSITIONS..][..rows].into();
        let contained = |&place: &usize| {
            let node = self.nodes[place].as_ref();
            node.is_some_and(|node| node.tokens.len() < rows && tokens.starts_with(&node.tokens))
        };
        let siblings = self.children(sequence.scope, parent);
        let contained: Vec<usize> = siblings.iter().copied().filter(contained).collect();
        // States of the leaves that the new node replaces are states of the new node.
        let mut states = Vec::new();
        for leaf in contained {
            if let Some(node) = &mut self.nodes[leaf] {
                states.append(&mut node.states);
            }
            self.remove(leaf, pages);
        }
        let held: Vec<Option<PageId>> = sequence.tables.iter().map(|table| table[place]).collect();
        for (group, page) in held.iter().enumerate() {
            if let Some(page) = *page {
                pages[group].share(page);
                self.held[group] += 1;
            }
        }
        let scope = sequence.scope;
        let fresh = place * PAGE_POSITIONS + rows;
        let node = Node { scope, tokens, parent, children: Vec::new(), pages: held, states, used: 0 };
        let page_place = place;
        let place = self.free.pop().unwrap_or(self.nodes.len());
        if place == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[place] = Some(node);
        match parent.and_then(|parent| self.nodes[parent].as_mut()) {
            Some(parent) => parent.children.push(place),
            None => self.roots.entry(scope).or_default().push(place),
        }
        self.hold_states(sequence, page_place, place, fresh, pages);
        place
    }

    /// Removes a leaf, and releases its pages.
    fn remove(&mut self, place: usize, pages: &mut [Pages]) {
        let Some(node) = self.nodes[place].take() else { return };
        self.free.push(place);
        for (group, page) in node.pages.iter().enumerate() {
            if let Some(page) = *page {
                pages[group].release(page);
                self.held[group] -= 1;
            }
        }
        let states = self.held.len() - 1;
        for &(_, page) in &node.states {
            pages[states].release(page);
            self.held[states] -= 1;
        }
        if let Some(parent) = node.parent.and_then(|parent| self.nodes[parent].as_mut()) {
            parent.children.retain(|&child| child != place);
        } else if let Some(roots) = self.roots.get_mut(&node.scope) {
            roots.retain(|&root| root != place);
            if roots.is_empty() {
                self.roots.remove(&node.scope);
            }
        }
    }
}
