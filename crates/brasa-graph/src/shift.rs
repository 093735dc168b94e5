//! Moving cached keys to other positions, and the properties of a graph that this needs.
//!
//! RoPE turns a query at *p* and a key at *j* so that their product depends on `p − j` alone, and rotations by fixed frequencies
//! add up: `R(j − d) = R(−d) · R(j)`. So a text that loses *d* positions can keep its keys, turned by `−d`, if positions enter
//! the graph only through such rotations, and the rotated values are used only by attention and the cache. The frequencies may be
//! scaled in any way that does not depend on the position (linear, Llama 3, YaRN, LongRoPE chosen at load); the magnitude of a
//! rotation is in the keys already.
//!
//! Turning keys rounds them once more: in the angles (f32, as in every rotation) and in the cache if it stores halves. The shift
//! itself is approximate too: values and the keys of deeper layers still depend on the dropped text.

use crate::device::{DeviceError, KvPool, KvType};
use crate::op::{Attention, CacheWrite, KvSource, RopeLayout, SequenceMemory};
use crate::step::PageId;
use crate::{Graph, GroupId, Input, Node, NodeId, Op, ValueId, ValueKind, WeightId};

/// The rotation that was applied to the keys of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRotation {
    /// Which elements form pairs.
    pub layout: RopeLayout,
    /// Leading elements of a head that turn.
    pub rotary_dim: usize,
    /// The angle of each pair per position, `[rotary_dim / 2]`.
    pub frequencies: WeightId,
}

/// The rotation of the keys of each cache of `graph`; `None` for keys without positions.
///
/// # Errors
///
/// The reason why keys cannot be moved, naming the operation that forbids it.
pub fn key_rotations(graph: &Graph) -> Result<Vec<Option<KeyRotation>>, String> {
    for (number, node) in graph.nodes().iter().enumerate() {
        let id = NodeId(number as u32);
        check_known(node, id)?;
        for &input in &node.inputs {
            check_use(graph, id, node, input)?;
        }
    }
    let mut rotations = vec![None; graph.caches.len()];
    for node in graph.nodes() {
        if let (Op::CacheWrite(CacheWrite { cache }), &[k, ..]) = (&node.op, &node.inputs[..]) {
            let rotation = &mut rotations[cache.0 as usize];
            let found = rotation_of(graph, k);
            if found.is_some() && graph.cache(*cache).value.is_prefix() {
                return Err(format!(
                    "a context shift of cache {}, whose turned keys hold its values",
                    cache.0
                ));
            }
            if rotation.is_some_and(|known| known != found) {
                return Err(format!("cache {} holds keys turned in two ways", cache.0));
            }
            *rotation = Some(found);
        }
    }
    let rotations: Vec<Option<KeyRotation>> = rotations.into_iter().map(Option::flatten).collect();
    for node in graph.nodes() {
        if let Op::Attention(Attention { source: KvSource::Cache(cache), .. }) = node.op
            && rotation_of(graph, node.inputs[0]) != rotations[cache.0 as usize]
        {
            return Err(format!("queries and keys of cache {} are turned in different ways", cache.0));
        }
    }
    Ok(rotations)
}

/// Checks that one more rounding of keys of type `dtype` costs less than a thousandth, the bound for halves.
///
/// # Errors
///
/// The element type, by name: bf16 keeps 8 bits of a number, and q8 at most 7, fewer in blocks with outliers.
pub fn check_type(dtype: KvType) -> Result<(), String> {
    match dtype {
        KvType::F32 | KvType::F16 => Ok(()),
        KvType::BF16 => Err("a context shift of bf16 keys, which would be rounded twice".into()),
        KvType::Q8 => Err("a context shift of q8 keys, which would be rounded twice".into()),
    }
}

/// Checks that `pages`, listed by cache group, exist and that each is named once.
///
/// # Errors
///
/// [`DeviceError::BadStep`].
pub fn check_pages(pool: &dyn KvPool, pages: &[Vec<PageId>]) -> Result<(), DeviceError> {
    let bad = |what: String| Err(DeviceError::BadStep { what: format!("a context shift of {what}") });
    let groups = pool.spec().groups.len();
    if pages.len() != groups {
        return bad(format!(
            "{} lists of pages, expected one for each of {groups} cache groups",
            pages.len()
        ));
    }
    for (group, pages) in pages.iter().enumerate() {
        let capacity = pool.capacity(GroupId(group as u32));
        let mut sorted = pages.clone();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        if let Some(page) = twice.or_else(|| sorted.last().copied().filter(|page| page.index() >= capacity)) {
            return bad(format!(
                "page {} of {capacity}, cache group {group}, expected each once",
                page.index()
            ));
        }
    }
    Ok(())
}

impl KeyRotation {
    /// Cosine and sine of the angle by which each pair turns when its position grows by `by`.
    pub fn angles(&self, frequencies: &[f32], by: i32) -> Vec<(f32, f32)> {
        frequencies
            .iter()
            .map(|frequency| by as f32 * frequency)
            .map(|angle| (angle.cos(), angle.sin()))
            .collect()
    }

    /// The two elements of a head that form pair `pair`.
    pub fn elements(&self, pair: usize) -> (usize, usize) {
        match self.layout {
            RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
            RopeLayout::SplitHalf => (pair, pair + self.rotary_dim / 2),
        }
    }
}

/// Checks that the effect of moved keys on a node is known. The node may keep keys and values of a cache, or those of a
/// memory, which has no positions, and nothing else between steps. A new operation is refused until this function lists
/// it.
fn check_known(node: &Node, id: NodeId) -> Result<(), String> {
    let name = node.op.name();
    match &node.op {
        Op::Attention(Attention { source: KvSource::Cache(_) | KvSource::Memory(_), .. })
        | Op::CacheWrite(_)
        | Op::MemoryWrite(_) => Ok(()),
        op if let Some(access) = op.memory_access() => match access.memory {
            SequenceMemory::Cache(cache) => {
                Err(format!("a context shift where {name} uses cache {} (node {})", cache.0, id.0))
            }
            SequenceMemory::State(_) => Err(format!(
                "a context shift of the recurrent state of {name} (node {}), which depends on all tokens before",
                id.0
            )),
        },
        Op::Embed(_)
        | Op::Gather(_)
        | Op::SelectRows(_)
        | Op::Linear(_)
        | Op::LinearTransposed(_)
        | Op::ExpertLinear(_)
        | Op::HeadLinear(_)
        | Op::ShortConv(_)
        | Op::StateScan(_)
        | Op::ClampedUnit(_)
        | Op::RouterTopK(_)
        | Op::Matmul(_)
        | Op::RmsNorm(_)
        | Op::LayerNorm(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Where(_)
        | Op::Rope(_)
        | Op::Attention(Attention { source: KvSource::Step(_), .. })
        | Op::Softmax(_)
        | Op::Reduce(_)
        | Op::Argmax(_)
        | Op::CrossEntropy(_)
        | Op::Concat(_)
        | Op::Slice(_)
        | Op::Narrow(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Broadcast(_)
        | Op::Cast(_)
        | Op::IndexAdd(_)
        | Op::MeanPool(_)
        | Op::Unfold(_)
        | Op::Pick(_)
        | Op::Place(_)
        | Op::LinearCrossEntropy(_) => Ok(()),
        _ => Err(format!("a context shift where {name} is computed (node {})", id.0)),
    }
}

/// Checks one use of positions or rotated values: only rotations may use positions, and only attention and caches may use rotated
/// values.
fn check_use(graph: &Graph, id: NodeId, node: &Node, input: ValueId) -> Result<(), String> {
    if graph.value(input).kind == ValueKind::Input(Input::Positions) {
        return match node.op {
            Op::Rope(_) if rotation_of(graph, node.outputs[0]).is_some() => Ok(()),
            _ => {
                Err(format!("a context shift where positions are read by {} (node {})", node.op.name(), id.0))
            }
        };
    }
    if rotation_of(graph, input).is_none() || node.op.is_view() {
        return Ok(());
    }
    let only_first = node.inputs[0] == input && !node.inputs[1..].contains(&input);
    match &node.op {
        Op::Attention(Attention { source: KvSource::Cache(_), .. }) | Op::CacheWrite(_) if only_first => {
            Ok(())
        }
        _ => Err(format!("a context shift where {} reads turned values (node {})", node.op.name(), id.0)),
    }
}

/// The rotation that made `value`, looking through views.
fn rotation_of(graph: &Graph, value: ValueId) -> Option<KeyRotation> {
    let node = graph.node(graph.producer(graph.view(value).root)?);
    let Op::Rope(rope) = node.op else { return None };
    match graph.value(node.inputs[2]).kind {
        ValueKind::Weight(frequencies) => {
            Some(KeyRotation { layout: rope.layout, rotary_dim: rope.rotary_dim, frequencies })
        }
        _ => None,
    }
}
