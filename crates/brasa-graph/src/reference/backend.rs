//! The reference interpreter as a device.

use std::sync::Arc;
use std::time::Instant;

use crate::device::{
    Backend, DeviceError, DeviceInfo, KvPool, KvPoolSpec, Measure, OpTime, Precision, Program, ProgramLimits,
    ProgramSpec, WeightSet,
};
use crate::output::{OutputPlace, Outputs};
use crate::shift::{KeyRotation, check_pages, check_type, key_rotations};
use crate::step::{PageId, Step};
use crate::step_rules::StepRules;
use crate::{CacheId, Graph, Node, NodeId, Sizes, ValueKind};

use super::interpreter::Run;
use super::weights::{ReferenceWeights, Slot, elements};
use super::{Array, Data, ReferencePool};

/// The reference device: exact weights, f32 arithmetic, one thread. See the [module](super).
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceBackend;

impl Backend for ReferenceBackend {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "reference".into(),
            description: "reference interpreter, f32, one thread".into(),
            threads: 1,
            memory_bytes: None,
            prompt_rows: 512,
            decode_rows: 16,
        }
    }

    fn weight_set(&self, _: Precision) -> Arc<dyn WeightSet> {
        Arc::new(ReferenceWeights::default())
    }

    fn measure(&self, graph: &Arc<Graph>, _: Precision, _: ProgramSpec) -> Result<Measure, DeviceError> {
        let elements = graph.weights().iter().map(|weight| weight.shape.iter().product::<usize>() as u64);
        Ok(Measure { weight_bytes: elements.sum::<u64>() * 4, arena_bytes: 0 })
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError> {
        Ok(Box::new(ReferencePool::new(spec)))
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError> {
        let unsupported =
            |what: &str| DeviceError::Unsupported { device: self.info().name, what: what.into() };
        let set: Arc<ReferenceWeights> =
            weights.into_any().downcast().map_err(|_| unsupported("weights that another device uploaded"))?;
        Ok(Box::new(ReferenceProgram {
            rules: StepRules::new(&graph, spec),
            rotations: key_rotations(&graph),
            weights: set.slots(&graph)?,
            places: OutputPlace::of(&graph),
            graph,
            words: Vec::new(),
        }))
    }
}

struct ReferenceProgram {
    graph: Arc<Graph>,
    weights: Vec<Arc<Slot>>,
    rules: StepRules,
    /// The rotation of the keys of each cache, or the reason why keys cannot be moved.
    rotations: Result<Vec<Option<KeyRotation>>, String>,
    places: Vec<OutputPlace>,
    /// The outputs of the latest step, one after the other.
    words: Vec<u32>,
}

impl ReferenceProgram {
    /// Runs a step, calling `done` after each node with the time at which the node began.
    fn execute(
        &mut self,
        step: &Step,
        pool: &mut dyn KvPool,
        mut done: impl FnMut(NodeId, Instant),
    ) -> Result<(), DeviceError> {
        self.rules.check(step, pool)?;
        let pool = pool
            .as_any_mut()
            .downcast_mut::<ReferencePool>()
            .ok_or_else(|| DeviceError::BadStep { what: "its KV pool belongs to another device".into() })?;
        let weights: Vec<Arc<Array>> = self.weights.iter().map(|slot| elements(slot)).collect();
        let sizes = Sizes::of(step);
        self.words.clear();
        for place in &mut self.places {
            let elements = place.resolve(&sizes, self.words.len());
            self.words.resize(self.words.len() + elements, 0);
        }
        if step.rows() == 0 {
            return Ok(());
        }
        let mut run = Run::new(&self.graph, &weights, step);
        let mut kv = pool.bind(&self.graph, step);
        for node in 0..self.graph.nodes().len() {
            let (id, began) = (NodeId(node as u32), Instant::now());
            run.node(id, &mut kv)?;
            done(id, began);
        }
        self.words.clear();
        for &output in self.graph.outputs() {
            match run.array(output).data {
                Data::U32(ref numbers) => self.words.extend_from_slice(numbers),
                Data::Floats(ref floats) => self.words.extend(floats.iter().map(|x| x.to_bits())),
            }
        }
        Ok(())
    }
}

impl Program for ReferenceProgram {
    fn limits(&self) -> ProgramLimits {
        self.rules.limits()
    }

    /// Zero: the reference keeps every value in an array of its own.
    fn arena_bytes(&self) -> u64 {
        0
    }

    fn run(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Outputs<'_>, DeviceError> {
        self.execute(step, pool, |_, _| {})?;
        Ok(Outputs::new(&self.places, &self.words))
    }

    fn check_shift(&self, pool: &dyn KvPool) -> Result<(), DeviceError> {
        let unsupported =
            |what: &String| DeviceError::Unsupported { device: "reference".into(), what: what.clone() };
        self.rotations.as_ref().map_err(unsupported)?;
        check_type(pool.spec().dtype).map_err(|what| unsupported(&what))
    }

    fn shift(&mut self, pool: &mut dyn KvPool, pages: &[Vec<PageId>], by: i32) -> Result<(), DeviceError> {
        self.check_shift(pool)?;
        self.rules.check_pool(pool)?;
        check_pages(pool, pages)?;
        let pool = pool
            .as_any_mut()
            .downcast_mut::<ReferencePool>()
            .ok_or_else(|| DeviceError::BadStep { what: "its KV pool belongs to another device".into() })?;
        for (cache, rotation) in self.rotations.iter().flatten().enumerate() {
            let Some(rotation) = rotation else { continue };
            let angles =
                rotation.angles(elements(&self.weights[rotation.frequencies.0 as usize]).floats(), by);
            let (group, place) = self.graph.cache_place(CacheId(cache as u32));
            for &page in &pages[group.0 as usize] {
                pool.turn(group, place, page, rotation, &angles);
            }
        }
        Ok(())
    }

    fn profile(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Vec<OpTime>, DeviceError> {
        let (graph, mut times) = (Arc::clone(&self.graph), Vec::new());
        let rows = step.rows() as u64;
        self.execute(step, pool, |id, began| {
            let node = &graph.nodes()[id.0 as usize];
            let weight = weight_of(&graph, node);
            let elements = weight.map_or(0, |weight| (weight.rows() * weight.row_len()) as u64);
            let name = weight.map(|weight| weight.name.as_str()).unwrap_or_default();
            times.push(OpTime {
                label: format!("{} {name}", node.op.name()).trim_end().into(),
                time: began.elapsed(),
                bytes: elements * 4,
                flops: 2 * elements * rows,
            });
        })?;
        Ok(times)
    }
}

fn weight_of<'a>(graph: &'a Graph, node: &Node) -> Option<&'a Arc<crate::Weight>> {
    node.inputs.iter().find_map(|&id| match graph.value(id).kind {
        ValueKind::Weight(weight) => Some(graph.weight(weight)),
        _ => None,
    })
}
