//! The softmax of one query and its derivative, in vectors.

use crate::attention::{Distances, Scoring};
use crate::simd::{Kernel, LANES, Simd};

/// Scales scores, caps them and subtracts penalties for distance; writes the slopes of the cap if there is one.
pub(super) struct Capped<'a> {
    pub scoring: Scoring,
    pub distances: Option<Distances>,
    pub scores: &'a mut [f32],
    pub slopes: &'a mut [f32],
}

impl Kernel for Capped<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Scoring { scale, softcap } = self.scoring;
        let scores = self.scores.as_chunks_mut::<LANES>().0;
        match softcap {
            None => {
                for scores in &mut *scores {
                    simd.store(simd.mul(simd.load(scores), simd.splat(scale)), scores);
                }
            }
            Some(cap) => {
                for (scores, slopes) in scores.iter_mut().zip(self.slopes.as_chunks_mut::<LANES>().0) {
                    let score = simd.tanh(simd.mul(simd.load(scores), simd.splat(scale / cap)));
                    let one = simd.splat(1.0);
                    simd.store(simd.sub(one, simd.mul(score, score)), slopes);
                    simd.store(simd.mul(score, simd.splat(cap)), scores);
                }
            }
        }
        let Some(distances) = self.distances else { return };
        for (block, scores) in scores.iter_mut().enumerate() {
            let score = simd.sub(simd.load(scores), distances.penalties(simd, block * LANES));
            simd.store(score, scores);
        }
    }
}

/// The softmax of one query and its derivative. Scores become probabilities p; changes dp of probabilities become
/// `scale · slope · p · (dp − Σ p·dp)`. A sink and its change take part in the sums.
pub(super) struct Softmax<'a> {
    pub scale: f32,
    pub scores: &'a mut [f32],
    pub changes: &'a mut [f32],
    pub slopes: Option<&'a [f32]>,
    pub sink: Option<(f32, f32)>,
}

/// Numbers of a softmax that the gradient of a sink needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Softened {
    /// The probability of the sink; 0 for none.
    pub sink: f32,
    /// `Σ p·dp`, the mean change.
    pub mean: f32,
}

impl Kernel for Softmax<'_> {
    type Output = Softened;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Softened {
        let scores = self.scores.as_chunks_mut::<LANES>().0;
        let changes = self.changes.as_chunks_mut::<LANES>().0;
        let mut largest = simd.splat(f32::NEG_INFINITY);
        for scores in &*scores {
            largest = simd.max(simd.load(scores), largest);
        }
        if let Some((sink, _)) = self.sink {
            largest = simd.max(simd.splat(sink), largest);
        }
        let largest = simd.splat(simd.largest(largest));
        let (mut sum, mut along) = (simd.splat(0.0), simd.splat(0.0));
        for (scores, changes) in scores.iter_mut().zip(&*changes) {
            let p = simd.exp_to_one(simd.sub(simd.load(scores), largest));
            simd.store(p, scores);
            sum = simd.add(sum, p);
            along = simd.mul_add(p, simd.load(changes), along);
        }
        let (mut total, mut along, mut of_sink) = (simd.sum(sum), simd.sum(along), 0.0);
        if let Some((sink, change)) = self.sink {
            let mut weights = [0.0; LANES];
            simd.store(simd.exp_to_one(simd.sub(simd.splat(sink), largest)), &mut weights);
            of_sink = weights[0];
            total += of_sink;
            along += of_sink * change;
        }
        let sum = 1.0 / total;
        let of_all = Softened { sink: of_sink * sum, mean: along * sum };
        let mean = simd.splat(of_all.mean);
        let (sum, scale) = (simd.splat(sum), simd.splat(self.scale));
        for (at, (scores, changes)) in scores.iter_mut().zip(changes).enumerate() {
            let p = simd.mul(simd.load(scores), sum);
            simd.store(p, scores);
            let mut factor = simd.mul(p, scale);
            if let Some(slopes) = self.slopes.and_then(|slopes| slopes.as_chunks::<LANES>().0.get(at)) {
                factor = simd.mul(factor, simd.load(slopes));
            }
            simd.store(simd.mul(factor, simd.sub(simd.load(changes), mean)), changes);
        }
        of_all
    }
}
