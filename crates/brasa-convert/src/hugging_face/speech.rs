//! Models of speech: Whisper under the names that files of whisper.cpp have.

use brasa_audio::MelFilters;
use brasa_formats::gguf::Metadata;
use brasa_formats::{Checkpoint, StorageFormat};
use brasa_models::{LoadOptions, Source as Configuration, SpeechGeneration, SpeechGgufForm, speech_to_gguf};

use super::encoder::without_weights;
use super::input::Input;
use super::{general, tensors, tokenizer};
use crate::model::{FILTERS, Model, OutTensor};
use crate::progress::tell;
use crate::source::Source;
use crate::{ConvertError, Event, Observer, Options, Result};

/// A folder of a Whisper as a GGUF model.
pub fn model(
    checkpoint: &Checkpoint,
    source: &Configuration,
    options: &Options,
    observer: &mut Observer<'_>,
) -> Result<Model> {
    // Whatever cannot be loaded is not converted.
    let read = brasa_models::build_speech(source, &LoadOptions::default())?;
    let form = speech_to_gguf(source)?;
    for warning in read.warnings {
        tell(observer, Event::Warning(warning))?;
    }
    let mut out = Vec::new();
    for tensor in source.tensors().filter(|tensor| !SpeechGgufForm::is_repeated(&tensor.name)) {
        let Some(name) = form.name(&tensor.name) else {
            return Err(ConvertError::tensor(&tensor.name, "no such tensor in whisper"));
        };
        out.push(tensors::finish(name.into(), tensor.shape.clone(), Source::of(tensor), options.recipe));
    }
    out.push(filters(form.num_mel_bins())?);

    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", SpeechGgufForm::ARCHITECTURE);
    metadata.insert("general.type", "model");
    general::describe(&mut metadata, checkpoint, options, &out, observer)?;
    let generation = SpeechGeneration::of(checkpoint, source, &read.spec)?;
    for (key, value) in form.pairs.iter().cloned().chain(generation.gguf_pairs(SpeechGgufForm::ARCHITECTURE))
    {
        metadata.insert(key, value);
    }
    let input = Input { checkpoint, source, architecture: SpeechGgufForm::ARCHITECTURE };
    tokenizer::describe(&mut metadata, &input, form.vocab_size(), options, observer)?;
    // What goes before a text is asked for with each window, and what ends it is drawn.
    for key in ["add_bos_token", "add_eos_token", "add_sep_token"] {
        metadata.remove(&format!("tokenizer.ggml.{key}"));
    }
    metadata.insert("tokenizer.ggml.add_bos_token", false);
    form.verify(&without_weights(&metadata, &out)?)?;
    Ok(Model { metadata, tensors: out })
}

/// The filter bank for this number of mel bins.
fn filters(bins: usize) -> Result<OutTensor> {
    let filters = MelFilters::slaney(bins)
        .map_err(|error| ConvertError::tensor(FILTERS, format!("{bins} mel bins: {error}")))?;
    let values = filters.to_matrix();
    let shape = vec![bins, values.len() / bins.max(1)];
    let source = Source::matrix(&values, &shape);
    Ok(OutTensor { name: FILTERS.into(), shape, source, base: StorageFormat::F32 })
}
