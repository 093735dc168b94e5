//! Encoding and writing, slab by slab, rows spread over threads: to GGUF, or to a file of whisper.cpp if the name ends in `.bin`.

use std::ops::Range;
use std::path::Path;

use brasa_formats::gguf::{TensorPlan, Writer};
use brasa_formats::{OutputFile, StorageFormat, codec, whisper_bin};

use crate::change::Survival;
use crate::model::{FILTERS, Model, OutTensor, order};
use crate::progress::tell;
use crate::{ConvertError, Event, Observer, Options, Result, Summary, mix};

/// Most elements that one thread holds as f32 at a time.
const SLAB_ELEMENTS: usize = 1 << 20;
/// Threads beyond these are not started; each has a slab of its own in memory.
const MOST_THREADS: usize = 256;

/// The version of the block formats that llama.cpp reads.
const QUANTIZATION_VERSION: u32 = 2;

pub fn write(
    mut model: Model,
    output: &Path,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<Summary> {
    model.tensors.sort_by(|a, b| order(&a.name).cmp(&order(&b.name)));
    model.metadata.insert("general.quantization_version", QUANTIZATION_VERSION);
    model.metadata.insert("general.file_type", options.recipe.file_type());

    let choices = mix::choose(&model, options.recipe);
    let mut fallbacks = 0;
    for (tensor, choice) in model.tensors.iter().zip(&choices) {
        if let Some(wanted) = choice.instead_of {
            fallbacks += 1;
            let (row_len, used) = (tensor.row_len(), choice.format);
            tell(observer, Event::Fallback { tensor: &tensor.name, row_len, wanted, used })?;
        }
    }
    let plans = model.tensors.iter().zip(&choices).map(|(tensor, choice)| TensorPlan {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        format: choice.format,
    });
    let is_whisper = model.metadata.get::<&str>("general.architecture")? == Some("whisper");
    let is_whisper_bin = is_whisper && output.extension().is_some_and(|end| end.eq_ignore_ascii_case("bin"));
    let output = OutputFile::create(output, options.existing)?;
    for stale in output.removed() {
        let warning = format!("{}: removed, a leftover of a run that was killed", stale.display());
        tell(observer, Event::Warning(warning))?;
    }
    if is_whisper_bin && model.metadata.iter().any(|(key, _)| key == "whisper.decoder.alignment_heads") {
        let warning = "files of whisper.cpp hold no generation_config.json: readers have lists of their own of what is not said, and of the heads by which words are timed";
        tell(observer, Event::Warning(warning.into()))?;
    }
    let mut writer = if is_whisper_bin {
        let (filters, plans) = filter_bank(&model, plans.collect())?;
        let format = options.recipe.main_format();
        Sink::WhisperBin(whisper_bin::Writer::create(output, &model.metadata, &filters, format, plans)?)
    } else {
        Sink::Gguf(Writer::create(output, &model.metadata, plans.collect())?)
    };
    let elements = model.tensors.iter().map(|tensor| (tensor.rows() * tensor.row_len()) as u64).sum();
    let summary = Summary { tensors: model.tensors.len(), elements, bytes: writer.data_bytes(), fallbacks };
    tell(observer, Event::Planned { tensors: summary.tensors, elements, bytes: summary.bytes })?;

    let requantised = model.tensors.iter().zip(&choices).filter(|(tensor, choice)| {
        let from = tensor.source.format();
        !from.is_float() && !choice.format.is_float() && from != choice.format
    });
    let requantised = requantised.count();
    if requantised > 0 {
        let warning = format!("{requantised} tensors were already quantised: their rounding errors add up");
        tell(observer, Event::Warning(warning))?;
    }

    let (mut done, mut survival) = (0, Survival::default());
    let written = |tensor: &OutTensor| !(is_whisper_bin && tensor.name == FILTERS);
    for (tensor, choice) in model.tensors.iter().zip(&choices).filter(|(tensor, _)| written(tensor)) {
        let (from, to) = (tensor.source.format(), choice.format);
        tell(observer, Event::Tensor { name: &tensor.name, shape: &tensor.shape, from, to })?;
        let (rows, row_len) = (tensor.rows(), tensor.row_len());
        let threads = options.threads.clamp(1, MOST_THREADS);
        let slab_rows = (SLAB_ELEMENTS * threads / row_len.max(1)).max(threads);
        let mut saturated = 0;
        for first in (0..rows).step_by(slab_rows) {
            let slab = first..rows.min(first + slab_rows);
            done += (slab.len() * row_len) as u64;
            if from == to
                && let Some(bytes) = tensor.source.stored(slab.clone())
            {
                writer.write(&tensor.name, bytes)?;
            } else {
                let slab = encode(tensor, to, slab, threads)?;
                saturated += slab.saturated;
                survival.add(slab.survival);
                writer.write(&tensor.name, &slab.bytes)?;
            }
            tell(observer, Event::Progress { done, elements })?;
        }
        if saturated > 0 {
            let name = &tensor.name;
            let warning = format!("{name}: {saturated} elements beyond the range of F16 became ±65504");
            tell(observer, Event::Warning(warning))?;
        }
    }
    writer.finish()?;
    let changed = model.tensors.iter().filter(|tensor| tensor.source.is_changed()).count();
    if changed > 0 {
        let (share, error) = survival.shares();
        // The file is complete: it is too late to cancel.
        let _ = observer(Event::Merged { tensors: changed, share, error });
    }
    Ok(summary)
}

/// The output file while it is written.
enum Sink {
    Gguf(Writer),
    WhisperBin(whisper_bin::Writer),
}

impl Sink {
    fn data_bytes(&self) -> u64 {
        match self {
            Self::Gguf(writer) => writer.data_bytes(),
            Self::WhisperBin(writer) => writer.data_bytes(),
        }
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Gguf(writer) => Ok(writer.write(name, bytes)?),
            Self::WhisperBin(writer) => Ok(writer.write(name, bytes)?),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Gguf(writer) => Ok(writer.finish()?),
            Self::WhisperBin(writer) => Ok(writer.finish()?),
        }
    }
}

/// The values of a Whisper's filter bank, which is no tensor in files of whisper.cpp, and the plans of all other tensors.
fn filter_bank(model: &Model, mut plans: Vec<TensorPlan>) -> Result<(Vec<f32>, Vec<TensorPlan>)> {
    let problem = "there is no filter bank, which files of whisper.cpp begin with";
    let filters = model.tensors.iter().find(|tensor| tensor.name == FILTERS);
    let filters = filters.ok_or_else(|| ConvertError::tensor(FILTERS, problem))?;
    let (rows, row_len) = (filters.rows(), filters.row_len());
    let mut values = vec![0.0; rows * row_len];
    for (row, out) in values.chunks_exact_mut(row_len.max(1)).enumerate() {
        let at_row = |source| ConvertError::Row { name: FILTERS.into(), row, source };
        filters.source.decode_row(row, rows, out).map_err(at_row)?;
    }
    plans.retain(|plan| plan.name != FILTERS);
    Ok((values, plans))
}

/// Encoded rows.
#[derive(Default)]
struct Slab {
    bytes: Vec<u8>,
    /// Elements that left the range of F16.
    saturated: usize,
    survival: Survival,
}

/// The stored bytes of rows `slab`.
fn encode(tensor: &OutTensor, format: StorageFormat, slab: Range<usize>, threads: usize) -> Result<Slab> {
    let row_len = tensor.row_len();
    let row_bytes = format.row_bytes(row_len).ok_or_else(|| {
        ConvertError::tensor(&tensor.name, format!("rows of {row_len} elements cannot be stored as {format}"))
    })?;
    let mut bytes = vec![0; slab.len() * row_bytes];
    if row_bytes == 0 {
        return Ok(Slab { bytes, ..Slab::default() });
    }
    let rows_each = slab.len().div_ceil(threads).max(1);
    let encode_rows = |first: usize, out: &mut [u8]| -> Result<(usize, Survival)> {
        let mut values = vec![0.0; row_len];
        let (mut saturated, mut survival) = (0, Survival::default());
        let is_changed = tensor.source.is_changed();
        let (mut base, mut written) = (vec![0.0; row_len], [vec![0.0; row_len], vec![0.0; row_len]]);
        let mut base_bytes = vec![0; row_bytes];
        for (i, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            let row = first + i;
            let at_row = |source| ConvertError::Row { name: tensor.name.clone(), row, source };
            tensor.source.decode_row(row, tensor.rows(), &mut values).map_err(at_row)?;
            if format == StorageFormat::F16 {
                saturated += values.iter().filter(|x| x.is_finite() && x.abs() >= 65520.0).count();
            }
            codec::encode_row(format, &values, None, out).map_err(at_row)?;
            if is_changed {
                tensor.source.decode_base_row(row, tensor.rows(), &mut base).map_err(at_row)?;
                codec::encode_row(format, &base, None, &mut base_bytes).map_err(at_row)?;
                codec::decode_row(format, &base_bytes, &mut written[0]).map_err(at_row)?;
                codec::decode_row(format, out, &mut written[1]).map_err(at_row)?;
                survival.count([&base, &values], [&written[0], &written[1]]);
            }
        }
        Ok((saturated, survival))
    };
    let counts = std::thread::scope(|scope| -> Result<(usize, Survival)> {
        let workers = bytes
            .chunks_mut(rows_each * row_bytes)
            .enumerate()
            .map(|(i, out)| {
                let (first, encode_rows) = (slab.start + i * rows_each, &encode_rows);
                let builder = std::thread::Builder::new();
                builder.spawn_scoped(scope, move || encode_rows(first, out))
            })
            .collect::<std::io::Result<Vec<_>>>()
            .map_err(|source| ConvertError::Thread { source })?;
        let (mut saturated, mut survival) = (0, Survival::default());
        for worker in workers {
            // A panic of a worker is a broken invariant of ours: let it go on.
            let (beyond, part) = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            saturated += beyond;
            survival.add(part);
        }
        Ok((saturated, survival))
    })?;
    let (saturated, survival) = counts;
    Ok(Slab { bytes, saturated, survival })
}
