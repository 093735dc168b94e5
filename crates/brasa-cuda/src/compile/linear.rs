//! Matrix products, and the operations that follow them in the same kernel.

use std::sync::Arc;

use brasa_graph::device::DeviceError;
use brasa_graph::fuse::Norm;
use brasa_graph::op::Unary;
use brasa_graph::{Op, ValueId};

use super::Compiler;
use super::tails::Beside;
use crate::driver::Kernel;
use crate::ops::{
    Behind, Company, FewRows, Further, GEMM_SIZES, Gemm, HeadNorm, InFront, LeftParts, LinearOp,
    MOST_ADDED_ROWS, ResultForm, TilesLaunch, gemm_kernels,
};
use crate::weights::{Form, Stored, Tiles};

/// Values that follow a product.
#[derive(Clone, Debug, Default)]
pub(super) struct Follow {
    pub bias: Option<ValueId>,
    pub residual: Option<ValueId>,
    pub gated_by: Option<Unary>,
    /// The low-rank product beside it.
    pub tail: Option<Beside>,
    /// The low-rank product of a bank, which kernels of few and of many rows add to the layer's.
    pub bank: Option<Arc<FewRows>>,
    /// True for one of several ways to compute a value. It has no operations behind it.
    pub is_bare: bool,
}

/// How a weight is multiplied.
#[derive(Debug)]
pub(super) struct Launches {
    /// The stretches of the weight that are stored in tiles.
    pub tiles: Vec<TilesLaunch>,
    /// For each other format kernels for one row and for many.
    pub rows: Vec<(Kernel, Kernel)>,
}

impl Compiler<'_> {
    /// Appends a product that is a node by itself, with the addition of a bias behind it.
    pub(super) fn linear_alone(&mut self, x: ValueId, w: ValueId, y: ValueId) -> Result<(), DeviceError> {
        let Some((addition, bias, sum)) = self.bias_behind(y, w) else {
            return self.linear(x, w, y, &Follow::default());
        };
        self.folded.push(addition);
        self.linear(x, w, sum, &Follow { bias: Some(bias), ..Follow::default() })
    }

    pub(super) fn linear(
        &mut self,
        x: ValueId,
        w: ValueId,
        y: ValueId,
        follow: &Follow,
    ) -> Result<(), DeviceError> {
        let Some(number) = self.weight(w) else {
            return self.matmul([x, w], [false, true], y, ("linear", false));
        };
        let op = self.linear_op(x, w, number, y, follow)?;
        let mut label = self.label("linear", number);
        if let Further::Tail(tail) = &op.further {
            label = format!("{label} + {}", self.graph.weights()[tail.beside.number].name);
        }
        self.push(op, label);
        Ok(())
    }

    /// The product with weight `number`, for the next operation.
    pub(super) fn linear_op(
        &mut self,
        x: ValueId,
        w: ValueId,
        number: usize,
        y: ValueId,
        follow: &Follow,
    ) -> Result<LinearOp, DeviceError> {
        let stored = self.weights.stored(number).ok_or_else(|| self.odd(w))?;
        let Launches { tiles, rows } = self.launches(number)?;
        let stored_weight = stored.weight;
        let (gemm, further) = match (&follow.tail, &follow.bank) {
            (Some(beside), _) => self.gemm_and_tail(beside, &tiles)?,
            (None, bank) => {
                let gemm = if rows.is_empty() { self.gemm(x, &tiles)? } else { None };
                (gemm, bank.clone().map_or(Further::Nothing, Further::Bank))
            }
        };
        let (x, in_front) = match self.normed.get(&x).copied() {
            Some((plain, norm)) => {
                let norm = self.head_norm(norm)?;
                let elements = self.elements(self.shape(plain));
                let (kernel, normed) = (self.kernel("rms_norm")?, self.buffer(elements));
                (self.slot(plain)?, Some(InFront { norm, kernel, normed }))
            }
            None => (self.slot(x)?, None),
        };
        let behind = Behind {
            bias: follow.bias.map(|bias| self.dense(bias)).transpose()?,
            residual: follow.residual.map(|residual| self.slot(residual)).transpose()?,
            gated_by: follow.gated_by,
        };
        let form = match &gemm {
            Some(gemm) if !follow.is_bare => self.result_form(y, gemm, &further, &tiles, &behind)?,
            _ => ResultForm::Floats,
        };
        let is_plain = in_front.is_none()
            && matches!(further, Further::Nothing)
            && behind.bias.is_none()
            && behind.gated_by.is_none();
        let floats = if self.exact || !is_plain {
            None
        } else {
            let elements = self.shape(y).resolve(&self.sizes).iter().product();
            self.floats(number, elements, false)?
        };
        let (w, out) = (stored_weight, self.make(y));
        Ok(LinearOp { tiles, gemm, further, rows, x, in_front, w, number, floats, behind, form, out })
    }

    /// The form in which a product of several rows leaves its result `y` to the operations behind.
    fn result_form(
        &mut self,
        y: ValueId,
        gemm: &Gemm,
        further: &Further,
        tiles: &[TilesLaunch],
        behind: &Behind,
    ) -> Result<ResultForm, DeviceError> {
        let company = match further {
            Further::Tail(_) => None,
            Further::Bank(few) => Some((MOST_ADDED_ROWS, Company::Addend(few.blocks_of_ranks()))),
            Further::Nothing => Some((u32::MAX, Company::Alone)),
        };
        if let Some((most_rows, company)) = company
            && self.leaves_parts(y, tiles)
        {
            let Tiles { count: tiles, subs, .. } = tiles[0].tiles;
            let (partial, bias) = (gemm.partial, behind.bias.clone());
            self.add_parts(y, LeftParts { tiles, subs, partial, bias, most_rows, company });
            return Ok(ResultForm::Parts);
        }
        if let Some(ahead) = self.ahead(y, behind.residual.as_ref(), tiles)? {
            return Ok(ResultForm::Rounded(Box::new(ahead)));
        }
        Ok(self.gated_to(y).map_or(ResultForm::Floats, ResultForm::Panels))
    }

    /// The kernels of a weight.
    pub(super) fn launches(&self, number: usize) -> Result<Launches, DeviceError> {
        let pair =
            |name: String| Ok::<_, DeviceError>((self.kernel(&name)?, self.kernel(&format!("{name}_wide"))?));
        let (mut tiles, mut rows) = (Vec::new(), Vec::new());
        let Some(stored) = self.weights.stored(number) else { return Ok(Launches { tiles, rows }) };
        for stretch in &stored.stretches {
            if let Some(of_stretch) = &stretch.tiles {
                let suffix = stretch.form().kernel_suffix();
                let (kernels, many) = (pair(format!("tiles_{suffix}"))?, self.kernels_of_many(suffix)?);
                tiles.push(TilesLaunch {
                    stretch: stretch.clone(),
                    tiles: of_stretch.clone(),
                    kernels,
                    many,
                });
            }
        }
        for form in stored.forms.iter().filter(|form| !matches!(form, Form::Tiles(_))) {
            rows.push(pair(format!("linear_{}", form.kernel_suffix()))?);
        }
        Ok(Launches { tiles, rows })
    }

    /// The kernels that multiply many rows with weights of a format, where there are such kernels and sums need not be exact.
    pub(super) fn kernels_of_many(&self, suffix: &str) -> Result<Option<[Kernel; GEMM_SIZES]>, DeviceError> {
        if self.exact || !self.gpu.has_tensor_kernels() {
            return Ok(None);
        }
        let [a, b, c, d, e] = gemm_kernels(suffix).map(|(name, shared_bytes)| {
            self.ask(&name);
            self.gpu.gemm(&name, shared_bytes)
        });
        Ok(Some([a?, b?, c?, d?, e?]))
    }

    /// True for a norm that the products behind it compute as they round their rows: all that read it multiply on tensor cores.
    pub(super) fn defers_norm(&self, y: ValueId) -> bool {
        let graph = self.graph;
        if self.exact
            || !self.gpu.has_tensor_kernels()
            || self.shape(y).rank() != 2
            || graph.outputs().contains(&y)
        {
            return false;
        }
        let mut readers = graph.nodes().iter().filter(|node| node.inputs.contains(&y)).peekable();
        readers.peek().is_some()
            && readers.all(|node| match (&node.op, &node.inputs[..]) {
                (Op::Linear(_), &[x, w]) => x == y && self.is_in_tiles(w),
                _ => false,
            })
    }

    /// The operands of a norm; the next operation needs them.
    pub(super) fn head_norm(&mut self, norm: Norm) -> Result<HeadNorm, DeviceError> {
        Ok(HeadNorm { weight: norm.w.map(|w| self.dense(w)).transpose()?, eps: norm.eps })
    }

    /// True for a weight all of whose rows are in tiles.
    pub(super) fn is_in_tiles(&self, w: ValueId) -> bool {
        self.stored(w).is_some_and(|stored| stored.stretches.iter().all(|stretch| stretch.tiles.is_some()))
    }

    pub(super) fn stored(&self, w: ValueId) -> Option<&Stored> {
        self.weights.stored(self.weight(w)?)
    }
}
