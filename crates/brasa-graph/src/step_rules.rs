//! Rules that a step must satisfy before it is computed.
//!
//! Every device checks its steps with these rules, so that all devices refuse a bad step with the same words, before anything is
//! written.

use std::ops::Range;

use crate::device::{DeviceError, KvPool, ProgramLimits, ProgramSpec};
use crate::op::{AccessKind, SequenceMemory};
use crate::state::{check_states, check_states_apart};
use crate::step::{GivenValues, Outs, PAGE_POSITIONS, PageId, Segment, Step};
use crate::{
    CacheGroup, CacheKind, Given, Graph, GroupId, Input, Node, Op, StateLayout, Value, ValueId, ValueKind,
};

/// The rules for the steps of one graph. A check allocates memory only if it refuses the step.
#[derive(Clone, Debug)]
pub struct StepRules {
    spec: ProgramSpec,
    groups: Vec<CacheGroup>,
    /// Use of each cache group by the graph.
    uses: Vec<GroupUse>,
    /// Inputs whose numbers index a table.
    limits: Vec<Limit>,
    /// True if the graph reads token ids.
    reads_tokens: bool,
    /// The inputs that the graph declares.
    givens: Vec<Given>,
    /// Elements of a row's embedding; `None` if the graph has no token embedding.
    embedding: Option<usize>,
    /// Layout of the graph's recurrent states.
    states: StateLayout,
}

/// A bound for some elements of each row of an input: they must be below a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    input: Input,
    elements: Range<usize>,
    below: usize,
}

/// How a graph uses a cache group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GroupUse {
    read: bool,
    written: bool,
}

impl GroupUse {
    fn of(graph: &Graph) -> Vec<Self> {
        let mut uses = vec![Self::default(); graph.cache_groups().len()];
        for access in graph.nodes().iter().filter_map(|node| node.op.memory_access()) {
            let SequenceMemory::Cache(cache) = access.memory else { continue };
            let (group, _) = graph.cache_place(cache);
            let uses = &mut uses[group.0 as usize];
            uses.read |= access.kind != AccessKind::Write;
            uses.written |= access.kind.writes();
        }
        uses
    }
}

impl StepRules {
    /// Makes the rules for a program of `graph` that is compiled for `spec`.
    pub fn new(graph: &Graph, spec: ProgramSpec) -> Self {
        let mut limits = Vec::new();
        for (numbers, below) in graph.nodes().iter().filter_map(|node| looked_up(graph, node)) {
            limit(graph, numbers, below, &mut limits);
        }
        let embedding = graph.token_embedding().map(|node| graph.node(node).outputs[0]);
        let embedding = embedding.and_then(|value| graph.value(value).shape.row_elements());
        let is_tokens = |value: &Value| value.kind == ValueKind::Input(Input::TokenIds);
        Self {
            spec,
            groups: graph.cache_groups(),
            uses: GroupUse::of(graph),
            limits,
            reads_tokens: graph.values().iter().any(is_tokens),
            givens: graph.givens().to_vec(),
            embedding,
            states: graph.state_layout(),
        }
    }

    /// The largest step that the rules accept.
    pub fn limits(&self) -> ProgramLimits {
        self.spec.limits
    }

    /// Checks `step` against the program's limits, the graph's inputs, caches and states, and the pages of `pool`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::StepTooLarge`] if `step` exceeds a limit, [`DeviceError::BadStep`] if it breaks another rule.
    pub fn check(&self, step: &Step, pool: &dyn KvPool) -> Result<(), DeviceError> {
        let ProgramLimits { max_rows, max_outs, max_segments } = self.spec.limits;
        for (what, found, limit) in [
            ("rows", step.rows(), max_rows),
            ("rows with logits", step.outs(), max_outs),
            ("sequences", step.segments.len(), max_segments),
        ] {
            if found > limit {
                return Err(DeviceError::StepTooLarge { what, found, limit });
            }
        }
        self.check_pool(pool)?;
        for (number, segment) in step.segments.iter().enumerate() {
            self.check_segment(number, segment, pool)?;
            self.check_alone(number, segment)?;
            check_states(number, segment, &self.states, pool)?;
            for earlier in 0..number {
                self.check_apart(step, earlier, number)?;
                if !self.states.is_empty() {
                    check_states_apart(step, earlier, number)?;
                }
            }
        }
        Ok(())
    }

    /// Checks that `pool` has the graph's cache groups and recurrent states, and keys and values of the spec's type.
    ///
    /// # Errors
    ///
    /// [`DeviceError::BadStep`], naming the difference.
    pub fn check_pool(&self, pool: &dyn KvPool) -> Result<(), DeviceError> {
        if pool.spec().states != self.states {
            return bad(format!(
                "its pool has {} recurrent states of other sizes than the graph's {}",
                pool.spec().states.states(),
                self.states.states()
            ));
        }
        if pool.spec().groups == self.groups {
            let (found, expected) = (pool.spec().dtype, self.spec.kv_type);
            if found != expected && !self.groups.is_empty() {
                return bad(format!("its KV pool is of type {found:?}, and the program is for {expected:?}"));
            }
            return Ok(());
        }
        bad(format!(
            "its KV pool has {} cache groups of other geometry than the graph's {}",
            pool.spec().groups.len(),
            self.groups.len()
        ))
    }

    fn check_segment(&self, number: usize, segment: &Segment, pool: &dyn KvPool) -> Result<(), DeviceError> {
        let rows = segment.rows;
        if rows == 0 {
            return bad(format!("segment {number} has no rows"));
        }
        if let Some(positions) = &segment.positions
            && positions.len() != rows
        {
            return bad(format!("segment {number} has {} positions for {rows} rows", positions.len()));
        }
        if let Some(given) = &segment.embeddings {
            self.check_embeddings(number, rows, given)?;
        }
        if let Some(tree) = &segment.tree
            && tree.rows() != rows
        {
            return bad(format!("segment {number} has a draft tree of {} rows for {rows} rows", tree.rows()));
        }
        if segment.first_index.checked_add(rows).is_none_or(|end| end > u32::MAX as usize) {
            return bad(format!("segment {number} begins at index {}", segment.first_index));
        }
        let tokens = segment.tokens.len();
        if tokens != rows && (self.reads_tokens || tokens > 0) {
            return bad(format!("segment {number} has {tokens} tokens for {rows} rows"));
        }
        if let Outs::Rows(outs) = &segment.outs
            && let Some(out) = outs.iter().find(|&&out| out as usize >= rows)
        {
            return bad(format!("segment {number} asks for the logits of row {out} of {rows}"));
        }
        self.check_givens(number, segment)?;
        self.check_numbers(number, segment)?;
        if segment.pages.len() != self.groups.len() {
            return bad(format!(
                "segment {number} has {} block tables, expected one for each of {} cache groups",
                segment.pages.len(),
                self.groups.len()
            ));
        }
        for (group, table) in segment.pages.iter().enumerate() {
            let capacity = pool.capacity(GroupId(group as u32));
            let (kind, uses) = (self.groups[group].kind, self.uses[group]);
            if kind == CacheKind::Memory && uses.read && segment.memory_rows == 0 {
                return bad(format!("segment {number} has no rows of memory, which the graph reads"));
            }
            let [read, written] = used_pages(&self.groups[group], uses, segment);
            for entry in read.chain(written) {
                let found = match table.get(entry).copied().flatten() {
                    Some(page) if page.index() < capacity => continue,
                    Some(page) => format!("page {} of {capacity}", page.index()),
                    None => "no page".into(),
                };
                return bad(format!(
                    "segment {number}, cache group {group}: {found} for indices {}..{}",
                    entry * PAGE_POSITIONS,
                    (entry + 1) * PAGE_POSITIONS
                ));
            }
        }
        Ok(())
    }
}

impl StepRules {
    fn check_embeddings(&self, number: usize, rows: usize, given: &[f32]) -> Result<(), DeviceError> {
        let Some(width) = self.embedding else {
            return bad(format!("segment {number} gives embeddings to a graph that embeds no tokens"));
        };
        if given.len() != rows.saturating_mul(width) {
            return bad(format!(
                "segment {number} has {} elements of embeddings, expected {rows} rows of {width}",
                given.len()
            ));
        }
        match given.iter().position(|x| !x.is_finite()) {
            Some(at) => {
                bad(format!("segment {number}, row {}: its embedding holds {}", at / width, given[at]))
            }
            None => Ok(()),
        }
    }

    fn check_givens(&self, number: usize, segment: &Segment) -> Result<(), DeviceError> {
        if segment.given.len() != self.givens.len() {
            return bad(format!(
                "segment {number} brings {} inputs, expected {}",
                segment.given.len(),
                self.givens.len()
            ));
        }
        for (given, values) in self.givens.iter().zip(&segment.given) {
            let (found, expected) = (values.elements(), given.elements(segment));
            if values.dtype() != given.dtype || found != expected {
                return bad(format!(
                    "segment {number} brings {found} elements {} of {}, expected {expected} {}",
                    values.dtype(),
                    given.name,
                    given.dtype
                ));
            }
            if let GivenValues::F32(values) = values
                && let Some(at) = values.iter().position(|x| !x.is_finite())
            {
                return bad(format!("segment {number}: element {at} of {} is {}", given.name, values[at]));
            }
        }
        Ok(())
    }

    /// Checks that numbers which index a table are below the table's length.
    fn check_numbers(&self, number: usize, segment: &Segment) -> Result<(), DeviceError> {
        for Limit { input, elements, below } in &self.limits {
            let too_large = |&(_, found): &(usize, u32)| found as usize >= *below;
            let (what, wrong) = match *input {
                Input::TokenIds => ("token", segment.tokens.iter().copied().enumerate().find(too_large)),
                Input::Positions => {
                    ("position", (0..segment.rows).map(|row| (row, segment.position(row))).find(too_large))
                }
                Input::OutRows => continue,
                Input::Given(id) => match &segment.given[id.0 as usize] {
                    GivenValues::U32(values) => {
                        let given = &self.givens[id.0 as usize];
                        let rows = values.chunks(given.row_elements().max(1)).enumerate();
                        let looked_up = rows.flat_map(|(row, values)| {
                            values.get(elements.clone()).unwrap_or(&[]).iter().map(move |&found| (row, found))
                        });
                        (&given.name[..], looked_up.into_iter().find(too_large))
                    }
                    GivenValues::F32(_) => continue,
                },
            };
            if let Some((row, found)) = wrong {
                return bad(format!("segment {number}, row {row}: {what} {found}, expected below {below}"));
            }
        }
        Ok(())
    }
}

impl StepRules {
    /// Checks that a page which a segment writes occurs only once among the pages that the segment uses.
    fn check_alone(&self, number: usize, segment: &Segment) -> Result<(), DeviceError> {
        for (group, table) in segment.pages.iter().enumerate().filter(|&(group, _)| self.uses[group].written)
        {
            let [read, written] = used_pages(&self.groups[group], self.uses[group], segment);
            for entry in written.clone() {
                let is_again = |&other: &usize| other != entry && table[other] == table[entry];
                if let Some(other) = read.clone().chain(written.clone()).find(is_again) {
                    let page = table[entry].map_or(0, PageId::index);
                    return bad(format!(
                        "segment {number}, cache group {group}: page {page} for indices {}.. and for indices {}..",
                        entry.min(other) * PAGE_POSITIONS,
                        entry.max(other) * PAGE_POSITIONS
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that two segments do not write the same slot of a page.
    fn check_apart(&self, step: &Step, one: usize, other: usize) -> Result<(), DeviceError> {
        let (a, b) = (&step.segments[one], &step.segments[other]);
        for group in (0..self.groups.len()).filter(|&group| self.uses[group].written) {
            let (a_table, b_table) = (&a.pages[group], &b.pages[group]);
            for a_entry in written_pages(a) {
                for b_entry in written_pages(b) {
                    let overlap =
                        a_table[a_entry] == b_table[b_entry] && slots(a, a_entry).overlaps(slots(b, b_entry));
                    if overlap {
                        let page = a_table[a_entry].map_or(0, PageId::index);
                        return bad(format!(
                            "segments {one} and {other} write the same slots of page {page}, cache group {group}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The block table entries that the segment's rows read in `group`, and the entries that they write.
fn used_pages(group: &CacheGroup, uses: GroupUse, segment: &Segment) -> [Range<usize>; 2] {
    let written = if uses.written { written_pages(segment) } else { 0..0 };
    if !uses.read {
        return [0..0, written];
    }
    let window_start = |window| (segment.first_index + 1).saturating_sub(window);
    let first = group.spec.window.map_or(0, window_start);
    let end = match group.kind {
        CacheKind::Text => segment.first_index + segment.rows,
        CacheKind::Memory => segment.memory_rows,
    };
    [first.min(end) / PAGE_POSITIONS..end.div_ceil(PAGE_POSITIONS), written]
}

/// Entries of the block table that the segment's rows are written to.
fn written_pages(segment: &Segment) -> Range<usize> {
    segment.first_index / PAGE_POSITIONS..(segment.first_index + segment.rows).div_ceil(PAGE_POSITIONS)
}

/// Slots of page `entry` that the segment's rows are written to.
fn slots(segment: &Segment, entry: usize) -> Slots {
    let base = entry * PAGE_POSITIONS;
    let end = segment.first_index + segment.rows;
    Slots { first: segment.first_index.saturating_sub(base), end: (end - base).min(PAGE_POSITIONS) }
}

#[derive(Clone, Copy)]
struct Slots {
    first: usize,
    end: usize,
}

impl Slots {
    fn overlaps(&self, other: Self) -> bool {
        self.first < other.end && other.first < self.end
    }
}

/// The numbers that a node looks up in a table of constant length, and that length.
fn looked_up(graph: &Graph, node: &Node) -> Option<(ValueId, usize)> {
    let shape = |value: ValueId| &graph.value(value).shape;
    let rows = |table| shape(table).outer().constant();
    let (numbers, below) = match (&node.op, &node.inputs[..]) {
        (Op::Embed(_), &[ids, table]) => (ids, rows(table)),
        (Op::Gather(_), &[table, indices]) => (indices, rows(table)),
        (Op::SelectRows(_), &[x, numbers]) => (numbers, rows(x)),
        (Op::IndexAdd(_), &[base, indices, _]) => (indices, rows(base)),
        (Op::ExpertLinear(_) | Op::ExpertLinearTransposed(_), &[_, experts, w, ..]) => (experts, rows(w)),
        (Op::ExpertLinearGradient(op), &[_, experts, _]) => (experts, Some(op.experts)),
        // Classes are the innermost axis.
        (Op::CrossEntropy(_), &[logits, targets]) => (targets, shape(logits).width()),
        (Op::LinearCrossEntropy(_) | Op::LinearCrossEntropyGradient(_), &[_, w, targets, ..]) => {
            (targets, rows(w))
        }
        (Op::Pick(_), &[x, indices]) => (indices, shape(x).width()),
        (Op::Place(op), &[_, indices]) => (indices, Some(op.width)),
        _ => return None,
    };
    Some((numbers, below?))
}

/// Adds the rule that `numbers` are below `below`, if they are an input or a part of one.
fn limit(graph: &Graph, numbers: ValueId, below: usize, limits: &mut Vec<Limit>) {
    let view = graph.view(numbers);
    let ValueKind::Input(input) = graph.value(view.root).kind else { return };
    match limits.iter_mut().find(|known| known.input == input && known.elements == view.elements) {
        Some(known) => known.below = below.min(known.below),
        None => limits.push(Limit { input, elements: view.elements, below }),
    }
}

fn bad(what: String) -> Result<(), DeviceError> {
    Err(DeviceError::BadStep { what })
}
