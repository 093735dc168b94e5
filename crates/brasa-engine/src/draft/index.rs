//! A suffix index: where the end of a text occurred before, and what followed it there.
//!
//! The index is a suffix automaton (Blumer et al. 1985, doi:10.1016/0304-3975(85)90157-4), built token by token. A *state* is a set
//! of parts of the text that occur at the same places. A state's *link* leads to the longest ends of its parts that occur at more places.
//! So the link of the state of the whole text is the longest end of the text that occurred before, and the edges of that state are the
//! tokens that followed it. A token is appended in constant time on average.

use std::collections::HashMap;

/// Most states whose occurrence counts are updated for a new token, those of the longest contexts first. Counts of shorter
/// contexts are too low in texts with many repetitions. That bounds the cost of a token.
const MOST_COUNTED: usize = 16;

/// Most edges of a state that are examined, the newest first.
const MOST_EDGES: usize = 32;

/// No state and no edge.
const NONE: u32 = u32::MAX;

/// The state of the empty text.
const ROOT: u32 = 0;

/// All parts of a text, and how often each of them occurs.
#[derive(Debug)]
pub(crate) struct SuffixIndex {
    states: Vec<State>,
    edges: Vec<Edge>,
    /// Edges by the state that they leave and their token.
    by_token: HashMap<(u32, u32), u32>,
    /// The state of the whole text.
    last: u32,
}

/// A place in the index: a suffix of the text that occurred before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    state: u32,
    /// Tokens of the suffix.
    pub(crate) length: usize,
}

/// The token that followed a place most often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Follower {
    /// The token.
    pub(crate) token: u32,
    /// Occurrences of the token after the place, divided by those of all tokens.
    pub(crate) share: f32,
    /// The place reached by the token.
    pub(crate) place: Place,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Tokens of the longest part.
    length: u32,
    link: u32,
    /// Times that the parts occur.
    count: u32,
    /// The newest edge.
    edges: u32,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    token: u32,
    target: u32,
    /// The next older edge of its state.
    older: u32,
}

impl Default for SuffixIndex {
    fn default() -> Self {
        let root = State { length: 0, link: NONE, count: 0, edges: NONE };
        Self { states: vec![root], edges: Vec::new(), by_token: HashMap::new(), last: ROOT }
    }
}

impl SuffixIndex {
    /// Tokens of the text.
    pub(crate) fn tokens(&self) -> usize {
        self.state(self.last).length as usize
    }

    /// Appends a token to the text.
    pub(crate) fn push(&mut self, token: u32) {
        let length = self.state(self.last).length + 1;
        let new = self.add(State { length, link: ROOT, count: 1, edges: NONE });
        let mut from = self.last;
        self.last = new;
        while from != NONE && self.edge(from, token).is_none() {
            self.connect(from, token, new);
            from = self.state(from).link;
        }
        if let Some(edge) = self.known(from, token) {
            let target = self.edges[edge].target;
            let length = self.state(from).length + 1;
            let link =
                if self.state(target).length == length { target } else { self.split(from, token, length) };
            self.states[new as usize].link = link;
        }
        let mut context = self.state(new).link;
        for _ in 0..MOST_COUNTED {
            if context == ROOT {
                break;
            }
            let state = &mut self.states[context as usize];
            state.count = state.count.saturating_add(1);
            context = state.link;
        }
    }

    /// The longest suffix of the text that occurred before.
    pub(crate) fn end(&self) -> Place {
        let link = self.state(self.last).link;
        let state = if link == NONE { ROOT } else { link };
        Place { state, length: self.state(state).length as usize }
    }

    /// The token that followed `place` most often, the newest among equals. Falls back to shorter suffixes if nothing followed
    /// `place`. `None` if nothing followed any of them.
    pub(crate) fn follower(&self, mut place: Place) -> Option<Follower> {
        while self.state(place.state).edges == NONE {
            place.state = Some(self.state(place.state).link).filter(|&link| link != NONE)?;
            place.length = place.length.min(self.state(place.state).length as usize);
        }
        if place.length == 0 {
            return None;
        }
        let (mut best, mut all) = (None, 0);
        let mut edge = self.state(place.state).edges;
        for _ in 0..MOST_EDGES {
            let Some(&Edge { token, target, older }) = self.edges.get(edge as usize) else { break };
            let count = self.state(target).count;
            all += u64::from(count);
            if best.is_none_or(|(most, _, _)| count > most) {
                best = Some((count, token, target));
            }
            edge = older;
        }
        let (count, token, state) = best?;
        let share = (f64::from(count) / all.max(1) as f64) as f32;
        Some(Follower { token, share, place: Place { state, length: place.length + 1 } })
    }

    fn state(&self, state: u32) -> State {
        self.states[state as usize]
    }

    fn edge(&self, state: u32, token: u32) -> Option<usize> {
        self.by_token.get(&(state, token)).map(|&edge| edge as usize)
    }

    /// The edge that leaves `state` with `token`; `None` if there is none.
    fn known(&self, state: u32, token: u32) -> Option<usize> {
        if state == NONE { None } else { self.edge(state, token) }
    }

    fn add(&mut self, state: State) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    fn connect(&mut self, from: u32, token: u32, target: u32) {
        let edge = self.edges.len() as u32;
        let older = std::mem::replace(&mut self.states[from as usize].edges, edge);
        self.edges.push(Edge { token, target, older });
        self.by_token.insert((from, token), edge);
    }

    /// Splits the state that `token` leads to from `from`: the parts of up to `length` tokens get a state of their own, which is
    /// returned.
    fn split(&mut self, mut from: u32, token: u32, length: u32) -> u32 {
        let Some(whole) = self.edge(from, token).map(|edge| self.edges[edge].target) else { return ROOT };
        let State { link, count, edges, .. } = self.state(whole);
        let part = self.add(State { length, link, count, edges: NONE });
        let mut copies = Vec::new();
        let mut edge = edges;
        while let Some(&Edge { token, target, older }) = self.edges.get(edge as usize) {
            copies.push((token, target));
            edge = older;
        }
        for (token, target) in copies.into_iter().rev() {
            self.connect(part, token, target);
        }
        self.states[whole as usize].link = part;
        while let Some(edge) = self.known(from, token).filter(|&edge| self.edges[edge].target == whole) {
            self.edges[edge].target = part;
            from = self.state(from).link;
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use brasa_graph::testing::Random;

    use super::*;

    /// The longest end of `text` that ends earlier too, and how often each token followed it.
    fn by_hand(text: &[u32]) -> (usize, HashMap<u32, usize>) {
        for length in (1..text.len()).rev() {
            let end = &text[text.len() - length..];
            let places = (length..text.len()).filter(|&place| &text[place - length..place] == end);
            let mut followers = HashMap::new();
            places.for_each(|place| *followers.entry(text[place]).or_default() += 1);
            if !followers.is_empty() {
                return (length, followers);
            }
        }
        (0, HashMap::new())
    }

    #[test]
    fn the_longest_known_end_and_its_most_frequent_follower_are_found() {
        for (seed, letters) in [(1, 2), (2, 3), (3, 5), (4, 40)] {
            let random = &mut Random::new(seed);
            let mut index = SuffixIndex::default();
            let mut text = Vec::new();
            for _ in 0..200 {
                let (length, followers) = by_hand(&text);
                assert_eq!((index.end().length, index.tokens()), (length, text.len()), "{text:?}");
                let follower = index.follower(index.end());
                assert_eq!(follower.is_some(), length > 0);
                if let Some(follower) = follower {
                    let most = followers.values().max();
                    assert_eq!(
                        followers.get(&follower.token),
                        most,
                        "{text:?}: {follower:?} of {followers:?}"
                    );
                    let share = followers[&follower.token] as f32 / followers.values().sum::<usize>() as f32;
                    assert!((follower.share - share).abs() < 1e-6, "{text:?}: {follower:?} of {followers:?}");
                }
                let token = random.below(letters) as u32;
                text.push(token);
                index.push(token);
            }
        }
    }

    #[test]
    fn a_text_is_followed_where_it_occurred_before() {
        let mut index = SuffixIndex::default();
        let text = [7, 1, 2, 3, 4, 5, 6, 7, 1, 2];
        for token in text {
            index.push(token);
        }
        let mut place = index.end();
        let mut found = Vec::new();
        while let Some(follower) = index.follower(place).filter(|_| found.len() < 14) {
            found.push(follower.token);
            place = follower.place;
        }
        // Behind its own end the text begins again: the longest end that is known is followed once more.
        assert_eq!(found, [3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2]);
    }
}
