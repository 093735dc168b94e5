//! Checks of moved keys: near the reference, and in a model of one layer, whose keys do not depend on other tokens, as if the
//! text had never been longer.

use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::Graph;
use crate::device::{Backend, KvType, Precision};
use crate::reference::ReferenceBackend;
use crate::step::PageId;

use super::{Decoder, Running, Tolerance, compare, tokens};

/// A text that loses its second page, with the logits of the reference.
#[derive(Debug)]
pub struct ShiftCase {
    graph: Arc<Graph>,
    kv: KvType,
    expected: Vec<f32>,
}

impl ShiftCase {
    /// A text with keys of type `kv`, in a decoder whose layers have `windows`.
    ///
    /// # Panics
    ///
    /// If the reference refuses the shift: a bug of this crate.
    pub fn new(windows: &[Option<usize>], kv: KvType) -> Self {
        let graph = decoder(windows);
        let expected = shifted(&ReferenceBackend, &graph, kv);
        Self { graph, kv, expected }
    }

    /// Checks the keys that a device moves against those of the reference.
    ///
    /// # Panics
    ///
    /// If they are not near.
    pub fn check(&self, device: &dyn Backend) {
        let found = shifted(device, &self.graph, self.kv);
        assert_near(&found, &self.expected, device, self.kv, Tolerance::F32);
    }
}

/// Checks that a model of one layer continues from moved keys as if the text had never been longer.
///
/// # Panics
///
/// If it does not.
pub fn check_shift_of_one_layer(device: &dyn Backend, kv: KvType) {
    let graph = decoder(&[None]);
    let found = shifted(device, &graph, kv);
    let (text, beside) = (tokens(680, 3), tokens(30, 5));
    let mut running = Running::new(device, &graph, Precision::Reference, kv);
    running.step(&[(1, &[&text[..256], &text[512..]].concat()), (2, &beside)]);
    let fresh = running.step(&[(1, &tokens(5, 4)), (2, &[1, 2, 3])]);
    assert_near(&found, &fresh, device, kv, Tolerance(2e-5));
}

/// Checks that a device refuses, by name, to move keys of too few bits.
///
/// # Panics
///
/// If it does not.
pub fn check_shift_of_few_bits(device: &dyn Backend) {
    let graph = decoder(&[None]);
    for (kv, name) in [(KvType::BF16, "bf16"), (KvType::Q8, "q8")] {
        let mut running = Running::new(device, &graph, Precision::Fast, kv);
        let error = running.program.shift(&mut *running.pool, &[Vec::new()], -256).expect_err("refused");
        let expected =
            format!("does not support a context shift of {name} keys, which would be rounded twice");
        assert!(error.to_string().ends_with(&expected), "{error}");
        assert_eq!(running.program.check_shift(&*running.pool), Err(error));
    }
}

/// A decoder with heads that are no multiple of a vector register, and frequencies down to 1e-4.
fn decoder(windows: &[Option<usize>]) -> Arc<Graph> {
    let decoder = Decoder {
        hidden: 32,
        heads: 2,
        head_dim: 40,
        feed_forward: 32,
        windows: windows.to_vec(),
        ..Decoder::small(StorageFormat::F32)
    };
    Arc::new(decoder.graph(6))
}

/// The logits of five rows after 680 tokens of which the second page was dropped, in a step with another text.
fn shifted(device: &dyn Backend, graph: &Arc<Graph>, kv: KvType) -> Vec<f32> {
    let mut running = Running::new(device, graph, Precision::Reference, kv);
    running.step(&[(2, &tokens(30, 5))]);
    running.step(&[(1, &tokens(680, 3))]);
    let mut segment = running.segment(1, &tokens(5, 4));
    segment.first_index -= 256;
    let mut moved: Vec<Vec<PageId>> = Vec::new();
    for table in &mut segment.pages {
        table.remove(1);
        moved.push(table[1..].iter().flatten().copied().collect());
    }
    running.program.shift(&mut *running.pool, &moved, -256).expect("keys that can be moved");
    let beside = running.segment(2, &[1, 2, 3]);
    running.run(vec![segment, beside])
}

/// Asserts that two results are near. `f32` is the tolerance for keys of f32.
fn assert_near(found: &[f32], expected: &[f32], device: &dyn Backend, kv: KvType, f32: Tolerance) {
    let comparison = compare(found, expected);
    let tolerance = if kv == KvType::F32 { f32 } else { Tolerance::F16 };
    assert!(comparison.within(tolerance), "{kv:?}, {}: {comparison}", device.info().description);
}
