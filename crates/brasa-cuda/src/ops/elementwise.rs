//! Functions of each element.

use brasa_graph::DType;
use brasa_graph::op::{Binary, ClampedUnit, PositionScale, Unary};

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::ops::flat::{self, EachElement};
use crate::params::{
    self, BinaryParams, CastParams, ChooseParams, ClampedUnitParams, PositionScaleParams, UnaryParams,
};
use crate::run::{Run, Slot};

/// `out = function(x)`.
#[derive(Debug)]
pub(crate) struct UnaryOp {
    pub kernels: EachElement,
    pub function: Unary,
    pub x: Slot,
    pub out: Slot,
}

/// `out = function(a, b)`, `b` repeated.
#[derive(Debug)]
pub(crate) struct BinaryOp {
    pub kernels: EachElement,
    pub function: Binary,
    pub a: Slot,
    pub b: Slot,
    pub out: Slot,
}

/// `out = condition ≠ 0 ? a : b`.
#[derive(Debug)]
pub(crate) struct ChooseOp {
    pub kernel: Kernel,
    pub condition: Slot,
    pub of_integers: bool,
    pub a: Slot,
    pub b: Slot,
    pub out: Slot,
}

/// `out = x` in another type. Halves are kept as the floats that they stand for.
#[derive(Debug)]
pub(crate) struct CastOp {
    pub kernel: Kernel,
    pub from_integers: bool,
    pub to: u32,
    pub x: Slot,
    pub out: Slot,
}

/// The kernel's number for a type.
pub(crate) fn cast_target(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => params::CAST_F32,
        DType::F16 => params::CAST_F16,
        DType::BF16 => params::CAST_BF16,
        DType::U32 => params::CAST_U32,
    }
}

/// The kernel's number and parameters for a function.
pub(super) fn unary(function: Unary) -> (u32, f32, f32) {
    match function {
        Unary::Scale(c) => (params::UNARY_SCALE, c, 0.0),
        Unary::Clamp { low, high } => (params::UNARY_CLAMP, low, high),
        Unary::Softcap(c) => (params::UNARY_SOFTCAP, c, 0.0),
        Unary::Exp => (params::UNARY_EXP, 0.0, 0.0),
        Unary::Log => (params::UNARY_LOG, 0.0, 0.0),
        Unary::Rsqrt => (params::UNARY_RSQRT, 0.0, 0.0),
        Unary::Tanh => (params::UNARY_TANH, 0.0, 0.0),
        Unary::Sigmoid => (params::UNARY_SIGMOID, 0.0, 0.0),
        Unary::Silu => (params::UNARY_SILU, 0.0, 0.0),
        Unary::GeluTanh => (params::UNARY_GELU_TANH, 0.0, 0.0),
        Unary::GeluErf => (params::UNARY_GELU_ERF, 0.0, 0.0),
        Unary::SquaredRelu => (params::UNARY_SQUARED_RELU, 0.0, 0.0),
        Unary::Softplus => (params::UNARY_SOFTPLUS, 0.0, 0.0),
    }
}

fn binary(function: Binary) -> u32 {
    match function {
        Binary::Add => params::BINARY_ADD,
        Binary::Sub => params::BINARY_SUB,
        Binary::Mul => params::BINARY_MUL,
        Binary::Div => params::BINARY_DIV,
        Binary::Maximum => params::BINARY_MAXIMUM,
    }
}

impl Launch for UnaryOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, out) = (run.tensor(&self.x), run.tensor(&self.out));
        let (function, a, b) = unary(self.function);
        let values = [x.strided(), x.strided(), out.strided()];
        if flat::launch(run, &self.kernels.flat, &out.dims, values, (function, a, b))? {
            return Ok(());
        }
        let (y, count) = (out.floats(), out.count() as u32);
        let params = UnaryParams { x: x.strided(), y, dims: out.dims, count, function, a, b };
        run.each(&self.kernels.any, out.count(), &params)
    }
}

impl Launch for BinaryOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (a, b, out) = (run.tensor(&self.a), run.tensor(&self.b), run.tensor(&self.out));
        let function = binary(self.function);
        let values = [a.strided(), b.repeated(), out.strided()];
        if flat::launch(run, &self.kernels.flat, &out.dims, values, (function, 0.0, 0.0))? {
            return Ok(());
        }
        let params = BinaryParams {
            a: a.strided(),
            b: b.repeated(),
            y: out.floats(),
            dims: out.dims,
            count: out.count() as u32,
            function,
        };
        run.each(&self.kernels.any, out.count(), &params)
    }
}

/// The clamped unit of a gated layer: `out = unit(gate, up)`, all of one shape.
#[derive(Debug)]
pub(crate) struct ClampedUnitOp {
    pub kernels: EachElement,
    pub unit: ClampedUnit,
    pub gate: Slot,
    pub up: Slot,
    pub out: Slot,
}

/// Scales rows by their positions: `out[r] = x[r] · factor(positions[r])` ([`PositionScale::factor`]).
#[derive(Debug)]
pub(crate) struct PositionScaleOp {
    pub kernel: Kernel,
    pub scale: PositionScale,
    pub x: Slot,
    pub positions: Slot,
    pub out: Slot,
}

impl Launch for ClampedUnitOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (gate, up, out) = (run.tensor(&self.gate), run.tensor(&self.up), run.tensor(&self.out));
        let ClampedUnit { alpha, limit } = self.unit;
        let values = [gate.strided(), up.strided(), out.strided()];
        if flat::launch(run, &self.kernels.flat, &out.dims, values, (0, alpha, limit))? {
            return Ok(());
        }
        let params = ClampedUnitParams {
            gate: gate.strided(),
            up: up.strided(),
            y: out.floats(),
            dims: out.dims,
            count: out.count() as u32,
            alpha,
            limit,
        };
        run.each(&self.kernels.any, out.count(), &params)
    }
}

impl Launch for PositionScaleOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, positions, out) = (run.tensor(&self.x), run.tensor(&self.positions), run.tensor(&self.out));
        let rows = positions.count().max(1);
        let params = PositionScaleParams {
            x: x.strided(),
            positions: positions.integers(),
            y: out.floats(),
            dims: out.dims,
            count: out.count() as u32,
            row_elements: (out.count() / rows).max(1) as u32,
            beta: self.scale.beta,
            step: self.scale.positions,
        };
        run.each(&self.kernel, out.count(), &params)
    }
}

impl Launch for ChooseOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let out = run.tensor(&self.out);
        let params = ChooseParams {
            condition: run.tensor(&self.condition).strided(),
            a: run.tensor(&self.a).strided(),
            b: run.tensor(&self.b).strided(),
            y: out.floats(),
            dims: out.dims,
            count: out.count() as u32,
            of_integers: u32::from(self.of_integers),
        };
        run.each(&self.kernel, out.count(), &params)
    }
}

impl Launch for CastOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, out) = (run.tensor(&self.x), run.tensor(&self.out));
        let params = CastParams {
            x: x.strided(),
            y: out.floats(),
            dims: out.dims,
            count: out.count() as u32,
            to: self.to,
            from_integers: u32::from(self.from_integers),
        };
        run.each(&self.kernel, out.count(), &params)
    }
}
