//! Clipping of gradients by their norm (Pascanu et al. 2012, arXiv:1211.5063).

/// The Euclidean norm of all gradients together, summed in f64.
pub fn norm(gradients: &[Vec<f32>]) -> f64 {
    gradients.iter().flatten().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

/// Scales gradients with the norm `found` down to the norm `longest`, as torch does: by `longest / (found + 1e-6)` if that is
/// less than 1.
pub fn clip(gradients: &mut [Vec<f32>], found: f64, longest: f64) {
    if let Some(factor) = shortening(found, longest) {
        gradients.iter_mut().flatten().for_each(|x| *x *= factor);
    }
}

/// The factor by which [`clip`] scales gradients; `None` if they are short enough.
pub fn shortening(found: f64, longest: f64) -> Option<f32> {
    let factor = longest / (found + 1e-6);
    (factor < 1.0).then_some(factor as f32)
}
