//! How long products of packed weights take that lie in the cache, by format and number of rows, on one thread.
//!
//! `cargo run --release -p brasa-cpu --example linear_rows -- ISA ROWS [FORMAT …]`, such as `avx2 1,8,512 Q4_0`
//!
//! A line for each format and number of rows: its name, the rows, and the nanoseconds of 256 outputs of 2,048 inputs, the best of
//! many. `tools/compare_builds.py` runs two builds of it in turn.
#![allow(unsafe_code, reason = "products are called as operations call them")]

#[path = "../tests/suite/common/tensors.rs"]
mod tensors;

use std::time::Instant;

use brasa_cpu::linear::{FloatRows, Input, Output, PackedLinear, Packer, RowMap};
use brasa_cpu::quantize::QuantizedRows;
use brasa_cpu::rounded::RoundedRows;
use brasa_cpu::shared::SharedSlice;
use brasa_cpu::{Isa, Team};
use brasa_graph::WeightPart;
use brasa_graph::device::Precision;
use tensors::{Noise, formats, tensor};

const OUTPUTS: usize = 256;
const INPUTS: usize = 2048;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [isa, rows, wanted @ ..] = &arguments[..] else { return Err("ISA ROWS [FORMAT …]".into()) };
    let isa = Isa::named(isa)?;
    let rows = rows.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let team = Team::new(1)?;
    for format in formats() {
        let name = format.to_string().replace(' ', "-");
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        let part = WeightPart::whole(tensor(format, OUTPUTS, INPUTS, &mut Noise::new(7)));
        let linear = PackedLinear::new(&name, &[part], Precision::Fast, &Packer::new(&team))?;
        for &rows in &rows {
            println!("{name} {rows} {:.0}", nanoseconds(isa, &linear, rows));
        }
    }
    Ok(())
}

fn nanoseconds(isa: Isa, linear: &PackedLinear, rows: usize) -> f64 {
    let x = Noise::new(1).activations(rows * INPUTS);
    let mut quantized = QuantizedRows::new(rows, INPUTS);
    quantized.quantize(isa, &x, 0..rows);
    let mut rounded = RoundedRows::default();
    rounded.reshape(rows, INPUTS);
    rounded.round(isa, &x, INPUTS, 0..rows);
    let float = FloatRows { values: &x, k: INPUTS, stride: INPUTS };
    let input = Input { float: Some(float), int8: Some(quantized.view()), bf16: Some(rounded.view()) };
    let mut y = vec![0.0; rows * OUTPUTS];
    let output = Output { values: SharedSlice::new(&mut y), stride: OUTPUTS, column: 0 };
    let (tries, repeats) = if rows > 64 { (12, 1) } else { (40, 24_usize.div_ceil(rows).max(12)) };
    let mut best = f64::INFINITY;
    for _ in 0..tries {
        let start = Instant::now();
        for _ in 0..repeats {
            // SAFETY: the operands were prepared for `isa`, all with `rows` rows; one thread writes `y`.
            unsafe { linear.multiply(isa, &input, RowMap::All(rows), &output, linear.share(1, 0)) };
        }
        best = best.min(start.elapsed().as_nanos() as f64 / repeats as f64);
    }
    best
}
