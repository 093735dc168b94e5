//! Weights of a graph, in the forms that its operations read.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_graph::device::{DeviceError, Precision, UploadProgress, WeightSet};
use brasa_graph::op::{Embed, ExpertLinear, Linear, LinearTransposed};
use brasa_graph::{Graph, Op, ValueKind, Weight};

use crate::error::DEVICE;
use crate::linear::{PackedExperts, PackedLinear, Packer};
use crate::{Error, Team};

/// Weights uploaded by the CPU device.
#[derive(Debug)]
pub(crate) struct CpuWeights {
    weights: Vec<Forms>,
    precision: Precision,
}

/// The same, for whoever holds them.
#[derive(Debug)]
pub(crate) struct CpuWeightSet(pub Arc<CpuWeights>);

/// The forms of one weight; usually one.
#[derive(Debug, Default)]
struct Forms {
    shape: Vec<usize>,
    linear: Option<PackedLinear>,
    experts: Option<PackedExperts>,
    floats: Option<Vec<f32>>,
}

/// How a graph uses one of its weights.
#[expect(clippy::struct_excessive_bools, reason = "independent uses")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uses {
    /// Multiplied by.
    products: bool,
    /// The products choose experts.
    choice: bool,
    /// Rows looked up or decoded.
    rows: bool,
    experts: bool,
    /// Anything else.
    floats: bool,
}

impl CpuWeights {
    /// Packs every weight of `graph` with all threads of `team`.
    pub(crate) fn upload(
        graph: &Graph,
        precision: Precision,
        team: &Team,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<Self, DeviceError> {
        let total_bytes = graph.weights().iter().map(Weight::stored_bytes).sum();
        let packer = Packer::new(team);
        let mut done_bytes = 0;
        let mut weights = Vec::with_capacity(graph.weights().len());
        for (weight, uses) in graph.weights().iter().zip(uses(graph)) {
            weights.push(Forms::new(weight, uses, precision, &packer)?);
            // The packed form is a copy: keeping the file's pages too would cost every weight twice.
            weight.parts.iter().for_each(|part| part.tensor.release_pages());
            done_bytes += weight.stored_bytes();
            if progress(UploadProgress { done_bytes, total_bytes }).is_break() {
                return Err(DeviceError::Cancelled);
            }
        }
        Ok(Self { weights, precision })
    }

    /// How they are multiplied.
    pub(crate) const fn precision(&self) -> Precision {
        self.precision
    }

    /// True where these are the weights of `graph`.
    pub(crate) fn fit(&self, graph: &Graph) -> bool {
        self.weights.len() == graph.weights().len()
            && self.weights.iter().zip(graph.weights()).all(|(forms, weight)| forms.shape == weight.shape)
            && self.weights.iter().zip(uses(graph)).all(|(forms, uses)| forms.serve(uses))
    }

    /// A weight `[N, K]` to multiply by, or to look rows up in.
    pub(crate) fn linear(&self, weight: usize) -> &PackedLinear {
        let linear = self.weights[weight].linear.as_ref();
        linear.unwrap_or_else(|| panic!("weight {weight} was not uploaded as a matrix"))
    }

    /// A weight `[X, N, K]`.
    pub(crate) fn experts(&self, weight: usize) -> &PackedExperts {
        let experts = self.weights[weight].experts.as_ref();
        experts.unwrap_or_else(|| panic!("weight {weight} was not uploaded as experts"))
    }

    /// All elements of a weight.
    pub(crate) fn floats(&self, weight: usize) -> &[f32] {
        let floats = self.weights[weight].floats.as_deref();
        floats.unwrap_or_else(|| panic!("weight {weight} was not uploaded as plain floats"))
    }
}

impl Forms {
    fn new(
        weight: &Weight,
        uses: Uses,
        precision: Precision,
        packer: &Packer<'_>,
    ) -> Result<Self, DeviceError> {
        let mut forms = Self { shape: weight.shape.clone(), ..Self::default() };
        if uses.products || uses.rows {
            // Where rows are only looked up, they stay as they are stored.
            let precision = if uses.products { precision } else { Precision::Reference };
            let pack = if uses.choice { PackedLinear::in_f32 } else { PackedLinear::new };
            let packed = pack(&weight.name, &weight.parts, precision, packer);
            forms.linear = Some(packed.map_err(|error| refused(weight, error))?);
        }
        if uses.experts {
            let packed = PackedExperts::new(&weight.name, &weight.parts, weight.shape[0], precision, packer);
            forms.experts = Some(packed.map_err(|error| refused(weight, error))?);
        }
        if uses.floats {
            forms.floats = Some(decode(weight)?);
        }
        Ok(forms)
    }

    fn serve(&self, uses: Uses) -> bool {
        (self.linear.is_some() || !uses.products && !uses.rows)
            && (self.experts.is_some() || !uses.experts)
            && (self.floats.is_some() || !uses.floats)
    }

    fn size_bytes(&self) -> usize {
        self.linear.as_ref().map_or(0, PackedLinear::size_bytes)
            + self
                .experts
                .as_ref()
                .map_or(0, |experts| experts.experts().iter().map(PackedLinear::size_bytes).sum())
            + self.floats.as_ref().map_or(0, |floats| floats.len() * 4)
    }
}

impl WeightSet for CpuWeightSet {
    fn size_bytes(&self) -> u64 {
        self.0.weights.iter().map(|forms| forms.size_bytes() as u64).sum()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn decode(weight: &Weight) -> Result<Vec<f32>, DeviceError> {
    let mut floats = vec![0.0; weight.rows() * weight.row_len()];
    let mut rest = floats.as_mut_slice();
    for part in &weight.parts {
        let (out, tail) = rest.split_at_mut(part.rows.len() * weight.row_len());
        part.tensor.decode_rows(part.rows.clone(), out).map_err(|error| DeviceError::Unsupported {
            device: DEVICE.into(),
            what: format!("{}: {error}", weight.name),
        })?;
        rest = tail;
    }
    Ok(floats)
}

fn refused(weight: &Weight, error: Error) -> DeviceError {
    match error {
        Error::OutOfMemory { bytes, .. } => {
            DeviceError::OutOfMemory { bytes: bytes as u64, what: weight.name.clone() }
        }
        Error::WorkerPanicked { .. } => {
            DeviceError::Lost { device: DEVICE.into(), reason: error.to_string() }
        }
        other => DeviceError::Unsupported { device: DEVICE.into(), what: other.to_string() },
    }
}

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
                (Op::Linear(Linear), 1) if whole => uses.products = true,
                (Op::LinearTransposed(LinearTransposed) | Op::Embed(Embed), 1) if whole => uses.rows = true,
                (Op::ExpertLinear(ExpertLinear), 2) if whole => uses.experts = true,
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
    all
}

/// The weights whose products are the scores of experts: small, and a rounding there may change who computes a row.
fn routers(graph: &Graph) -> impl Iterator<Item = usize> {
    let routed = graph.nodes().iter().filter(|node| matches!(node.op, Op::RouterTopK(_)));
    routed.filter_map(|node| {
        let linear = graph.node(graph.producer(graph.view(node.inputs[0]).root)?);
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
        let (_, shares) = b.router_topk(scores, RouterTopK { k: 2, gating: Gating::SoftmaxAll });
        let y = b.linear(x, other);
        let graph = b.finish(&[shares, y]).unwrap();

        let team = Team::new(1).unwrap();
        let upload = CpuWeights::upload(&graph, Precision::Fast, &team, &mut |_| ControlFlow::Continue(()));
        let weights = upload.unwrap();
        let is_quantised = |name: &str| {
            let at = graph.weights().iter().position(|weight| weight.name == name).unwrap();
            weights.linear(at).weight_classes().has(WeightClass::Quantised)
        };
        assert_eq!([is_quantised("router"), is_quantised("other")], [false, true]);
    }
}
