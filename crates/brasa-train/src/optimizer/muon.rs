//! Muon: momentum with orthogonalised matrices (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

use super::Form;

/// Coefficients of the iteration, which trade convergence to 1 for speed: singular values end between 0.7 and 1.2.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];
const STEPS: usize = 5;
const EPS: f32 = 1e-7;

/// Settings of Muon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// Decay of the mean of gradients.
    pub momentum: f64,
    /// True for Nesterov's momentum, which looks ahead along the momentum.
    pub nesterov: bool,
    /// Weight decay: the share by which values shrink, times the learning rate, or that is added to the gradient, by `kind`.
    pub weight_decay: f64,
    /// Variant of Muon.
    pub kind: MuonKind,
}

/// The implementations of Muon, which differ in weight decay, in the rate of tall matrices, and in arrays that are not matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MuonKind {
    /// Weight decay is decoupled from the gradient, as in `torch.optim.Muon`. Arrays that are not matrices are changed by AdamW
    /// at the same rate and weight decay.
    #[default]
    Torch,
    /// Adds weight decay to the gradient, and changes arrays that are no matrices by the momentum itself, as `mlx.optimizers.Muon`
    /// does. Adapter matrices count as their transposes, as MLX-LM stores them.
    Mlx,
}

impl Default for Muon {
    fn default() -> Self {
        Self { momentum: 0.95, nesterov: true, weight_decay: 0.0, kind: MuonKind::default() }
    }
}

impl Muon {
    /// Updates a matrix, or with [`MuonKind::Mlx`] any array, by its gradient and its momentum.
    pub(super) fn update(
        &self,
        form: Form,
        learning_rate: f64,
        values: &mut [f32],
        gradients: &[f32],
        momentum: &mut [f32],
    ) {
        let (decay, kept) = match self.kind {
            MuonKind::Torch => (0.0, (1.0 - learning_rate * self.weight_decay) as f32),
            MuonKind::Mlx => (self.weight_decay as f32, 1.0),
        };
        let (old, new) = (self.momentum as f32, (1.0 - self.momentum) as f32);
        let mut along = Vec::with_capacity(values.len());
        for ((value, &gradient), mean) in values.iter().zip(gradients).zip(momentum.iter_mut()) {
            let gradient = gradient + decay * value;
            *mean += new * (gradient - *mean);
            along.push(if self.nesterov { new * gradient + old * *mean } else { *mean });
        }
        let mut rate = learning_rate;
        if let Some([count, rows, columns]) = form.matrices() {
            // MLX takes a stack for one matrix, of whose rows each is a matrix of the stack.
            along = if count == 1 {
                orthogonal(&along, rows, columns)
            } else {
                orthogonal(&along, count, rows * columns)
            };
            let is_transposed = self.kind == MuonKind::Mlx && matches!(form, Form::LowRank(..));
            let (rows, columns) = if is_transposed { (columns, rows) } else { (rows, columns) };
            rate *= (rows as f64 / columns as f64).max(1.0).sqrt();
        }
        let rate = rate as f32;
        for (value, along) in values.iter_mut().zip(along) {
            *value = kept * *value - rate * along;
        }
    }
}

/// A matrix with about the same singular vectors and with singular values near 1, by five steps of a Newton–Schulz iteration of fifth order.
fn orthogonal(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let is_tall = rows > columns;
    let (short, long) = (rows.min(columns), rows.max(columns));
    let mut x = if is_tall { transposed(matrix, rows, columns) } else { matrix.to_vec() };
    let norm = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
    for x in &mut x {
        *x /= norm + EPS;
    }
    let [first, third, fifth] = COEFFICIENTS;
    let rows_of =
        |x: &[f32], width: usize| -> Vec<Vec<f32>> { x.chunks_exact(width).map(<[f32]>::to_vec).collect() };
    for _ in 0..STEPS {
        // B = third · A + fifth · A², A = X·Xᵀ, which is symmetric.
        let own = rows_of(&x, long);
        let a: Vec<Vec<f32>> =
            own.iter().map(|left| own.iter().map(|right| dot(left, right)).collect()).collect();
        let b = a.iter().map(|left| {
            a.iter()
                .zip(left)
                .map(|(right, &own)| third * own + fifth * dot(left, right))
                .collect::<Vec<f32>>()
        });
        let b: Vec<Vec<f32>> = b.collect();
        for (new, weights) in x.chunks_exact_mut(long).zip(&b) {
            for x in new.iter_mut() {
                *x *= first;
            }
            for (&weight, row) in weights.iter().zip(&own) {
                new.iter_mut().zip(row).for_each(|(x, &own)| *x += weight * own);
            }
        }
    }
    debug_assert_eq!(x.len(), short * long);
    if is_tall { transposed(&x, columns, rows) } else { x }
}

fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])).collect()
}

/// The dot product of two rows, in eight partial sums.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, rest_a) = a.as_chunks::<8>();
    let (b, rest_b) = b.as_chunks::<8>();
    let mut sums = [0.0_f32; 8];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum::<f32>()
}
