//! Weights, in the forms that operations read.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use brasa_graph::device::{DeviceError, LostPart, Precision, UploadProgress, WeightSet};
use brasa_graph::op::{Binary, Linear};
use brasa_graph::{Graph, Op, ValueKind, Weight, WeightMap};

use crate::error::DEVICE;
use crate::linear::{PackedExperts, PackedLinear, Packer};
use crate::{Error, Team};

/// Weights on the CPU device, found by their identity.
#[derive(Debug)]
pub(crate) struct CpuWeightSet {
    precision: Precision,
    /// True if weights are packed without their bytes.
    measures: bool,
    team: Arc<Team>,
    held: WeightMap<Held>,
    /// Counts writes, so that programs notice them.
    version: AtomicU64,
    /// Lock for adding and writing weights.
    changing: Mutex<()>,
}

/// The weights of one program, in order of the graph's ids.
#[derive(Debug)]
pub(crate) struct CpuWeights {
    set: Arc<CpuWeightSet>,
    version: u64,
    weights: Vec<Forms>,
}

/// The forms of one weight; usually one. Each is packed when a graph first needs it.
#[derive(Debug, Default)]
struct Held {
    /// Rows as they are stored, for looking up.
    rows: OnceLock<Slot<PackedLinear>>,
    /// Rows to multiply by in the set's precision. Rows are looked up here if there are no others.
    products: OnceLock<Slot<PackedLinear>>,
    /// Rows whose products choose experts: in f32.
    choice: OnceLock<Slot<PackedLinear>>,
    experts: OnceLock<Slot<PackedExperts>>,
    floats: OnceLock<Slot<Vec<f32>>>,
}

/// A packed form, which a write exchanges between two steps.
type Slot<T> = Arc<RwLock<Arc<T>>>;

/// The forms of one weight that a program reads, and where it finds them after a write.
#[derive(Debug, Default)]
struct Forms {
    linear: Option<Form<PackedLinear>>,
    experts: Option<Form<PackedExperts>>,
    floats: Option<Form<Vec<f32>>>,
}

#[derive(Debug)]
struct Form<T> {
    slot: Slot<T>,
    packed: Arc<T>,
}

impl<T> Form<T> {
    fn of(slot: &Slot<T>) -> Self {
        Self { packed: current(slot), slot: Arc::clone(slot) }
    }

    fn refresh(&mut self) {
        self.packed = current(&self.slot);
    }
}

fn current<T>(slot: &Slot<T>) -> Arc<T> {
    Arc::clone(&slot.read().unwrap_or_else(PoisonError::into_inner))
}

fn slot<T>(packed: T) -> Slot<T> {
    Arc::new(RwLock::new(Arc::new(packed)))
}

/// The forms of a weight that a graph needs.
#[expect(clippy::struct_excessive_bools, reason = "independent forms")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uses {
    /// Rows looked up or decoded, and nothing else.
    rows: bool,
    /// Multiplied by.
    products: bool,
    /// Multiplied by, and the products choose experts.
    choice: bool,
    experts: bool,
    /// Anything else.
    floats: bool,
}

impl CpuWeightSet {
    /// An empty set, packed by the threads of `team`.
    pub(crate) fn new(precision: Precision, team: Arc<Team>) -> Self {
        let (held, version, changing) = (WeightMap::default(), AtomicU64::new(0), Mutex::new(()));
        Self { precision, measures: false, team, held, version, changing }
    }

    /// The weights of `graph` in a new set, with the sizes of packed weights but without their bytes.
    ///
    /// # Errors
    ///
    /// Errors of [`WeightSet::add`].
    pub(crate) fn measured(
        graph: &Graph,
        precision: Precision,
        team: Arc<Team>,
    ) -> Result<CpuWeights, DeviceError> {
        let set = Arc::new(Self { measures: true, ..Self::new(precision, team) });
        set.add(graph, &mut |_| ControlFlow::Continue(()))?;
        set.weights_of(graph)
    }

    /// The weights of `graph`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`], naming a weight that was not added, or not for such a graph.
    pub(crate) fn weights_of(self: Arc<Self>, graph: &Graph) -> Result<CpuWeights, DeviceError> {
        let version = self.version.load(Ordering::Acquire);
        let mut weights = Vec::with_capacity(graph.weights().len());
        for (weight, uses) in graph.weights().iter().zip(uses(graph)) {
            let held = self.held(weight)?;
            weights.push(held.forms(uses).ok_or_else(|| DeviceError::not_added(DEVICE, weight))?);
        }
        Ok(CpuWeights { set: self, version, weights })
    }

    fn held(&self, weight: &Arc<Weight>) -> Result<Arc<Held>, DeviceError> {
        self.held.get(weight).ok_or_else(|| DeviceError::not_added(DEVICE, weight))
    }
}

impl WeightSet for CpuWeightSet {
    fn add(
        &self,
        graph: &Graph,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let all = graph.weights().iter().zip(uses(graph));
        let missing: Vec<(&Arc<Weight>, Uses)> = all
            .filter(|(weight, uses)| self.held.get(weight).is_none_or(|held| !held.serves(*uses)))
            .collect();
        let total_bytes = missing.iter().map(|(weight, _)| weight.stored_bytes()).sum();
        let packer = if self.measures { Packer::measuring } else { Packer::new }(&self.team);
        let mut done_bytes = 0;
        for (weight, uses) in missing {
            let held = self.held.entry(weight, || Ok(Held::default()))?;
            held.pack(weight, uses, self.precision, &packer)?;
            // The packed form is a copy: keeping the file's pages too would cost every weight twice.
            if !self.measures {
                weight.parts.iter().for_each(|part| part.tensor.release_pages());
            }
            done_bytes += weight.stored_bytes();
            if progress(UploadProgress { done_bytes, total_bytes }).is_break() {
                return Err(DeviceError::Cancelled);
            }
        }
        Ok(())
    }

    fn read(&self, weight: &Arc<Weight>) -> Result<Vec<f32>, DeviceError> {
        let held = self.held(weight)?;
        let elements = weight.rows() * weight.row_len();
        let mut values = Vec::new();
        values.try_reserve_exact(elements).map_err(|_| DeviceError::OutOfMemory {
            bytes: elements as u64 * 4,
            what: weight.name.clone(),
        })?;
        let decode = |packed: &PackedLinear, values: &mut Vec<f32>| {
            for row in 0..packed.n() {
                let start = values.len();
                values.resize(start + packed.k(), 0.0);
                packed.decode_row(row, &mut values[start..]);
            }
        };
        if let Some(floats) = held.floats.get() {
            values.extend_from_slice(&current(floats));
        } else if let Some(rows) = held.any_rows() {
            decode(&current(rows), &mut values);
        } else if let Some(experts) = held.experts.get() {
            current(experts).experts().iter().for_each(|expert| decode(expert, &mut values));
        } else {
            return Err(DeviceError::not_added(DEVICE, weight));
        }
        Ok(values)
    }

    fn write(&self, weight: &Arc<Weight>, values: &[f32]) -> Result<(), DeviceError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.held(weight)?;
        let written = weight
            .with_values(values)
            .map_err(|error| DeviceError::Unsupported { device: DEVICE.into(), what: error.to_string() })?;
        // Everything is packed before anything is exchanged: a failure leaves the weight as it was.
        let fresh = Held::default();
        fresh.pack(&written, held.present(), self.precision, &Packer::of_one_weight(&self.team))?;
        held.exchange(&fresh);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.held.values().iter().map(|held| held.size_bytes() as u64).sum()
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl CpuWeights {
    /// Bytes of all weights of the set.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.set.size_bytes()
    }

    /// How they are multiplied.
    pub(crate) fn precision(&self) -> Precision {
        self.set.precision
    }

    /// Takes up what was written since the last call.
    pub(crate) fn refresh(&mut self) {
        let version = self.set.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            for forms in &mut self.weights {
                forms.linear.iter_mut().for_each(Form::refresh);
                forms.experts.iter_mut().for_each(Form::refresh);
                forms.floats.iter_mut().for_each(Form::refresh);
            }
        }
    }

    /// A weight `[N, K]` to multiply by, or to look rows up in.
    pub(crate) fn linear(&self, weight: usize) -> &PackedLinear {
        let linear = self.weights[weight].linear.as_ref();
        &linear.unwrap_or_else(|| panic!("weight {weight} was not uploaded as a matrix")).packed
    }

    /// A weight `[X, N, K]`.
    pub(crate) fn experts(&self, weight: usize) -> &PackedExperts {
        let experts = self.weights[weight].experts.as_ref();
        &experts.unwrap_or_else(|| panic!("weight {weight} was not uploaded as experts")).packed
    }

    /// All elements of a weight.
    pub(crate) fn floats(&self, weight: usize) -> &[f32] {
        let floats = self.weights[weight].floats.as_ref();
        &floats.unwrap_or_else(|| panic!("weight {weight} was not uploaded as plain floats")).packed
    }
}

impl Held {
    /// Packs the forms that `uses` names and that are not there yet.
    fn pack(
        &self,
        weight: &Weight,
        uses: Uses,
        precision: Precision,
        packer: &Packer<'_>,
    ) -> Result<(), DeviceError> {
        let Weight { name, parts, shape, .. } = weight;
        let refused = |error| refused(weight, error);
        if uses.rows {
            // Rows that are only looked up stay as they are stored.
            let pack = || PackedLinear::new(name, parts, Precision::Reference, packer).map_err(refused);
            fill(&self.rows, pack)?;
        }
        if uses.products {
            fill(&self.products, || PackedLinear::new(name, parts, precision, packer).map_err(refused))?;
        }
        if uses.choice {
            fill(&self.choice, || PackedLinear::in_f32(name, parts, precision, packer).map_err(refused))?;
        }
        if uses.experts {
            let pack = || PackedExperts::new(name, parts, shape[0], precision, packer).map_err(refused);
            fill(&self.experts, pack)?;
        }
        if uses.floats {
            fill(&self.floats, || weight.decode(DEVICE))?;
        }
        Ok(())
    }

    /// The forms that are there.
    fn present(&self) -> Uses {
        Uses {
            rows: self.rows.get().is_some(),
            products: self.products.get().is_some(),
            choice: self.choice.get().is_some(),
            experts: self.experts.get().is_some(),
            floats: self.floats.get().is_some(),
        }
    }

    /// A form in which rows can be looked up.
    fn any_rows(&self) -> Option<&Slot<PackedLinear>> {
        self.products.get().or_else(|| self.choice.get()).or_else(|| self.rows.get())
    }

    fn serves(&self, uses: Uses) -> bool {
        self.forms(uses).is_some()
    }

    /// The forms that `uses` needs, if all are there.
    fn forms(&self, uses: Uses) -> Option<Forms> {
        let mut forms = Forms::default();
        if uses.choice {
            forms.linear = Some(Form::of(self.choice.get()?));
        } else if uses.products {
            forms.linear = Some(Form::of(self.products.get()?));
        } else if uses.rows {
            forms.linear = Some(Form::of(self.any_rows()?));
        }
        if uses.experts {
            forms.experts = Some(Form::of(self.experts.get()?));
        }
        if uses.floats {
            forms.floats = Some(Form::of(self.floats.get()?));
        }
        Some(forms)
    }

    /// Gives every form of this weight the elements of `fresh`, which has the same forms.
    fn exchange(&self, fresh: &Self) {
        fn put<T>(old: &OnceLock<Slot<T>>, fresh: &OnceLock<Slot<T>>) {
            if let (Some(old), Some(fresh)) = (old.get(), fresh.get()) {
                *old.write().unwrap_or_else(PoisonError::into_inner) = current(fresh);
            }
        }
        put(&self.rows, &fresh.rows);
        put(&self.products, &fresh.products);
        put(&self.choice, &fresh.choice);
        put(&self.experts, &fresh.experts);
        put(&self.floats, &fresh.floats);
    }

    fn size_bytes(&self) -> usize {
        let linear =
            |form: &OnceLock<Slot<PackedLinear>>| form.get().map_or(0, |slot| current(slot).size_bytes());
        let experts = self
            .experts
            .get()
            .map_or(0, |slot| current(slot).experts().iter().map(PackedLinear::size_bytes).sum());
        let floats = self.floats.get().map_or(0, |slot| current(slot).len() * 4);
        linear(&self.rows) + linear(&self.products) + linear(&self.choice) + experts + floats
    }
}

/// Puts a form into its place unless it is there.
fn fill<T>(
    place: &OnceLock<Slot<T>>,
    pack: impl FnOnce() -> Result<T, DeviceError>,
) -> Result<(), DeviceError> {
    if place.get().is_none() {
        let packed = slot(pack()?);
        place.get_or_init(|| packed);
    }
    Ok(())
}

fn refused(weight: &Weight, error: Error) -> DeviceError {
    match error {
        Error::OutOfMemory { bytes, .. } => {
            DeviceError::OutOfMemory { bytes: bytes as u64, what: weight.name.clone() }
        }
        Error::WorkerPanicked { .. } => {
            DeviceError::Lost { device: DEVICE.into(), part: LostPart::Program, reason: error.to_string() }
        }
        other => DeviceError::Unsupported { device: DEVICE.into(), what: other.to_string() },
    }
}

/// The forms that `graph` needs of each of its weights.
fn uses(graph: &Graph) -> Vec<Uses> {
    let mut all = vec![Uses::default(); graph.weights().len()];
    let root = |value| match graph.value(graph.view(value).root).kind {
        ValueKind::Weight(weight) => Some(weight.0 as usize),
        _ => None,
    };
    for node in graph.nodes().iter().filter(|node| !node.op.is_view()) {
        for (place, &value) in node.inputs.iter().enumerate() {
            let Some(weight) = root(value) else { continue };
            let whole = matches!(graph.value(value).kind, ValueKind::Weight(_));
            let uses = &mut all[weight];
            match (&node.op, place) {
                (Op::Linear(_) | Op::LinearCrossEntropy(_) | Op::LinearCrossEntropyGradient(_), 1)
                    if whole =>
                {
                    uses.products = true;
                }
                (Op::LinearTransposed(_) | Op::Embed(_), 1) if whole => uses.rows = true,
                (Op::HeadLinear(_), 1) | (Op::ExpertLinear(_) | Op::ExpertLinearTransposed(_), 2)
                    if whole =>
                {
                    uses.experts = true;
                }
                _ => uses.floats = true,
            }
        }
    }
    for &output in graph.outputs() {
        if let Some(weight) = root(output) {
            all[weight].floats = true;
        }
    }
    for weight in routers(graph) {
        all[weight].choice = true;
    }
    for uses in &mut all {
        // One packed form serves products and lookups.
        uses.products &= !uses.choice;
        uses.rows &= !uses.products && !uses.choice;
    }
    all
}

/// The weights whose products are the scores of experts: small, and a rounding there may change who computes a row.
fn routers(graph: &Graph) -> impl Iterator<Item = usize> {
    let routed = graph.nodes().iter().filter(|node| matches!(node.op, Op::RouterTopK(_)));
    let maker = |value| Some(graph.node(graph.producer(graph.view(value).root)?));
    routed.filter_map(move |node| {
        let mut linear = maker(node.inputs[0])?;
        if linear.op == Op::Binary(Binary::Add) {
            linear = maker(linear.inputs[0])?;
        }
        match (&linear.op, &linear.inputs[..]) {
            (Op::Linear(Linear), &[_, w]) => match graph.value(w).kind {
                ValueKind::Weight(weight) => Some(weight.0 as usize),
                _ => None,
            },
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use brasa_formats::{Payload, StorageFormat, Tensor};
    use brasa_graph::op::{Gating, RouterTopK};
    use brasa_graph::testing::{Random, f32_weight};
    use brasa_graph::{Builder, Input, WeightPart};

    use crate::linear::WeightClass;

    use super::*;

    #[test]
    fn scores_of_experts_are_not_made_of_int8_activations() {
        let mut b = Builder::new();
        let table = b.weight(Ok(f32_weight(&mut Random::new(1), "table", &[10, 64])));
        let [router, other] = ["router", "other"].map(|name| {
            let format = StorageFormat::Q8_0;
            let bytes = vec![0; 4 * format.row_bytes(64).unwrap()];
            let payload = Payload::Blocks(bytes.into());
            let tensor = Tensor { name: name.into(), shape: vec![4, 64], format, payload };
            b.weight(Weight::new(name, &[4, 64], vec![WeightPart::whole(tensor)]))
        });
        let ids = b.input(Input::TokenIds);
        let x = b.embed(ids, table);
        let scores = b.linear(x, router);
        let (_, shares) = b.router_topk(scores, RouterTopK { k: 2, gating: Gating::SOFTMAX_ALL });
        let y = b.linear(x, other);
        let graph = b.finish(&[shares, y]).unwrap();

        let team = Team::new(1).unwrap();
        let set = Arc::new(CpuWeightSet::new(Precision::Fast, Arc::new(team)));
        set.add(&graph, &mut |_| ControlFlow::Continue(())).unwrap();
        let weights = set.weights_of(&graph).unwrap();
        let is_quantised = |name: &str| {
            let at = graph.weights().iter().position(|weight| weight.name == name).unwrap();
            weights.linear(at).weight_classes().has(WeightClass::Quantised)
        };
        assert_eq!([is_quantised("router"), is_quantised("other")], [false, true]);
    }
}
