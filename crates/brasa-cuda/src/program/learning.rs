//! Sums of gradients and updates by AdamW, on the device.
#![expect(unsafe_code, reason = "launches kernels on memory of its own")]

use std::sync::Arc;

use brasa_graph::device::{DeviceError, KvPool};
use brasa_graph::learn::{AdamStep, LearnedBlock, LearnedState, Learner};
use brasa_graph::step::Step;

use super::CudaProgram;
use crate::driver::{DeviceMemory, Grid, Kernel};
use crate::params::{LearnParams, LearnedRows, Ptr};
use crate::run::{Base, THREADS};

/// Blocks of a grid for each learned block, at most; and elements that are worth one.
const MOST_GRID: usize = 32;
const EACH: usize = 4096;
/// Learned blocks of a grid.
const MOST_BLOCKS: usize = 65_535;

/// Memory of what is learned.
#[derive(Debug)]
pub(super) struct Learning {
    sum: Kernel,
    norm: Kernel,
    adam: Kernel,
    blocks: Vec<LearnedRows>,
    /// The blocks, for the kernels.
    table: DeviceMemory,
    /// Sums, means and squares.
    arrays: [DeviceMemory; 3],
    /// A sum of squares for each block of a grid.
    partial: DeviceMemory,
    grid: Grid,
}

impl Learning {
    fn params(&self) -> LearnParams {
        let [sums, means, squares] = &self.arrays;
        LearnParams {
            blocks: Ptr::new(self.table.address()),
            sums: Ptr::new(sums.address()),
            means: Ptr::new(means.address()),
            squares: Ptr::new(squares.address()),
            partial: Ptr::new(self.partial.address()),
            is_first: 0,
            factor: 0.0,
            kept: 0.0,
            new1: 0.0,
            beta2: 0.0,
            new2: 0.0,
            rate: 0.0,
            root: 0.0,
            eps: 0.0,
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.arrays.iter().chain([&self.table, &self.partial]).map(DeviceMemory::size_bytes).sum()
    }

    /// The elements of block `number` in an array of all blocks.
    fn of<'a>(&self, all: &'a [f32], number: usize) -> &'a [f32] {
        let LearnedRows { first, count, .. } = self.blocks[number];
        &all[first as usize..][..count as usize]
    }
}

impl CudaProgram {
    fn learning(&self) -> &Learning {
        self.learning.as_ref().expect("Learner::prepare made room")
    }

    fn launch_learning(&self, kernel: &Kernel, params: &LearnParams) -> Result<(), DeviceError> {
        // SAFETY: the table's addresses are of weights and of the arena, which live as long as this program, and `prepare` made the
        // arrays as long as all blocks together.
        unsafe { self.gpu.stream.launch(kernel, self.learning().grid, params) }
            .map_err(|error| self.gpu.error(error))
    }

    fn read_floats(&self, memory: &DeviceMemory) -> Result<Vec<f32>, DeviceError> {
        let mut values = vec![0.0_f32; memory.size_bytes() / 4];
        self.gpu.read(memory, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}

impl Learner for CudaProgram {
    fn prepare(&mut self, blocks: &[LearnedBlock]) -> Result<bool, DeviceError> {
        let mut rows = Vec::with_capacity(blocks.len());
        let mut first = 0;
        for LearnedBlock { weight, output, rows: of_rows, columns } in blocks {
            let gradient = self.table.outputs.get(*output).and_then(|slot| match slot.base {
                Base::Buffer(buffer) if slot.row_stride.is_none() => {
                    Some(self.arena.address() + (self.table.offsets[buffer.index()] + slot.start * 4) as u64)
                }
                _ => None,
            });
            let (Some(values), Some(gradient)) = (self.weights.learnable(weight), gradient) else {
                return Ok(false);
            };
            let stride = weight.row_len();
            let before = ((of_rows.start * stride + columns.start) * 4) as u64;
            let count = (of_rows.len() * columns.len()) as u64;
            rows.push(LearnedRows {
                values: Ptr::new(values + before),
                gradients: Ptr::new(gradient + before),
                first,
                count,
                columns: columns.len() as u32,
                stride: stride as u32,
            });
            first += count;
        }
        if rows.is_empty() || rows.len() > MOST_BLOCKS || rows.iter().any(|row| row.count == 0) {
            return Ok(false);
        }
        let gpu = Arc::clone(&self.gpu);
        let longest = rows.iter().map(|row| row.count).max().unwrap_or(0) as usize;
        let blocks = longest.div_ceil(EACH).min(MOST_GRID);
        let grid = Grid { blocks: [blocks as u32, rows.len() as u32, 1], threads: THREADS, shared_bytes: 0 };
        let array = |what| gpu.allocate_zeros(first as usize * 4, what);
        let table: Vec<u64> = rows.iter().flat_map(LearnedRows::words).collect();
        let learning = Learning {
            sum: gpu.kernel("learn_sum")?,
            norm: gpu.kernel("learn_norm")?,
            adam: gpu.kernel("learn_adam")?,
            table: gpu.allocate(table.len() * 8, "learned blocks")?,
            arrays: [array("gradients")?, array("means of gradients")?, array("means of squares")?],
            partial: gpu.allocate_zeros(blocks * rows.len() * 8, "sums of squares")?,
            blocks: rows,
            grid,
        };
        gpu.write(&learning.table, 0, bytemuck::cast_slice(&table))?;
        self.learning = Some(learning);
        Ok(true)
    }

    fn run_and_sum(
        &mut self,
        step: &Step,
        pool: &mut dyn KvPool,
        is_first: bool,
    ) -> Result<f32, DeviceError> {
        if step.rows() == 0 {
            return Err(DeviceError::BadStep { what: "there is nothing to learn".into() });
        }
        self.execute_for(step, pool, 1, &mut |_, _| Ok(()))?;
        let loss = bytemuck::cast_slice::<u8, f32>(&self.outputs.bytes()[..4])[0];
        let learning = self.learning();
        let params = LearnParams { is_first: is_first.into(), ..learning.params() };
        self.launch_learning(&learning.sum, &params)?;
        Ok(loss)
    }

    fn norm(&mut self) -> Result<f64, DeviceError> {
        let learning = self.learning();
        self.launch_learning(&learning.norm, &learning.params())?;
        let mut squares = vec![0.0_f64; learning.partial.size_bytes() / 8];
        let read = self.gpu.read(&learning.partial, bytemuck::cast_slice_mut(&mut squares));
        self.note(read)?;
        Ok(squares.iter().sum::<f64>().sqrt())
    }

    fn update(&mut self, step: &AdamStep) -> Result<(), DeviceError> {
        let &AdamStep { factor, kept, new1, beta2, new2, rate, root, eps } = step;
        let _changing = self.weights.hold_changing();
        let learning = self.learning();
        let params = LearnParams { factor, kept, new1, beta2, new2, rate, root, eps, ..learning.params() };
        self.launch_learning(&learning.adam, &params)
    }

    fn read(&mut self) -> Result<Vec<LearnedState>, DeviceError> {
        let learning = self.learning();
        let [_, means, squares] = &learning.arrays;
        let (means, squares) = (self.read_floats(means)?, self.read_floats(squares)?);
        let mut states = Vec::with_capacity(learning.blocks.len());
        for (number, rows) in learning.blocks.iter().enumerate() {
            let (columns, stride) = (rows.columns as usize, rows.stride as usize);
            let count = rows.count as usize / columns;
            let mut matrix = vec![0.0_f32; (count - 1) * stride + columns];
            // SAFETY: from the block's first element to its last, in a weight that this program holds.
            unsafe { self.gpu.stream.download(bytemuck::cast_slice_mut(&mut matrix), rows.values.0) }
                .map_err(|error| self.gpu.error(error))?;
            let values = matrix.chunks(stride).flat_map(|row| &row[..columns]).copied().collect();
            let [means, squares] = [&means, &squares].map(|all| learning.of(all, number).to_vec());
            states.push(LearnedState { values, means, squares });
        }
        Ok(states)
    }

    fn write_means(&mut self, of_blocks: &[[&[f32]; 2]]) -> Result<(), DeviceError> {
        let learning = self.learning();
        let counts: Vec<usize> = learning.blocks.iter().map(|rows| rows.count as usize).collect();
        for (which, memory) in learning.arrays[1..].iter().enumerate() {
            let lengths: Vec<usize> = of_blocks.iter().map(|arrays| arrays[which].len()).collect();
            assert_eq!(lengths, counts, "means of each block");
            let all: Vec<f32> = of_blocks.iter().flat_map(|arrays| arrays[which]).copied().collect();
            self.gpu.write(memory, 0, bytemuck::cast_slice(&all))?;
        }
        Ok(())
    }
}
