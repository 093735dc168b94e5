use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use brasa_formats::Checkpoint;
use brasa_graph::device::{Backend, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::{GivenValues, Outs, Segment, Step};
use brasa_graph::testing::Sequences;
use brasa_models::{LoadOptions, SpeechModel, load_speech};

/// A model of speech on a device.
pub struct SpeechRunner {
    programs: [Box<dyn Program>; 2],
    pool: Box<dyn KvPool>,
    sequences: Sequences,
    rows: usize,
}

impl SpeechRunner {
    /// On the reference interpreter, f32 throughout.
    pub fn new(model: &SpeechModel) -> Self {
        Self::on(&ReferenceBackend, model, Precision::Reference, KvType::F32)
    }

    /// On `device`.
    pub fn on(device: &dyn Backend, model: &SpeechModel, precision: Precision, dtype: KvType) -> Self {
        let weights = device.weight_set(precision);
        let rows = model.spec.encoder.positions;
        let limits = ProgramLimits { max_rows: rows, max_outs: 448, max_segments: 1 };
        let programs = [&model.encoder, &model.decoder].map(|graph| {
            weights.add(graph, &mut |_| ControlFlow::Continue(())).expect("the device takes every weight");
            let graph = Arc::new(graph.clone());
            device
                .compile(graph, Arc::clone(&weights), limits.with(dtype))
                .expect("the device runs both graphs")
        });
        let pool = KvPoolSpec::of(&model.decoder, dtype);
        let pool = device.kv_pool(pool).expect("pages");
        let sequences = Sequences::new(&*pool);
        Self { programs, pool, sequences, rows }
    }

    /// Writes the memories of window `id` from its frames, `[2 · rows, bins]`; returns the encoder's output.
    pub fn encode(&mut self, id: u64, mel: Vec<f32>) -> Vec<Vec<f32>> {
        self.sequences.remember(id, self.rows);
        let room = self.sequences.extend(&mut *self.pool, id, &[], Outs::None).expect("pages");
        let segment = Segment { rows: self.rows, given: vec![GivenValues::F32(mel.into())], ..room };
        let outputs = self.programs[0].run(&Step { segments: vec![segment] }, &mut *self.pool);
        let outputs = outputs.expect("a valid step");
        let output = outputs.only();
        (0..output.rows()).map(|row| output.row(row).to_vec()).collect()
    }

    /// Logits of every row of `ids`, which go on with the text of window `id`.
    pub fn logits(&mut self, id: u64, ids: &[u32]) -> Vec<Vec<f32>> {
        let segment = self.sequences.extend(&mut *self.pool, id, ids, Outs::All).expect("pages");
        let outputs = self.programs[1].run(&Step { segments: vec![segment] }, &mut *self.pool);
        let outputs = outputs.expect("a valid step");
        let output = outputs.only();
        (0..output.rows()).map(|row| output.row(row).to_vec()).collect()
    }
}

/// Loads the model of speech at `path` strictly.
pub fn load_speech_strictly(path: &Path) -> SpeechModel {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let options = LoadOptions { context_length: None, strict: true };
    let model = load_speech(&checkpoint, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(model.warnings, Vec::<String>::new(), "{}", path.display());
    model
}
