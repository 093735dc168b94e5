//! A checkpoint's arrays in new files of a limited size, with their index, as transformers' `save_pretrained` writes them.

use std::collections::HashMap;
use std::io::Write;
use std::num::NonZeroU64;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::changed::{Changes, pieces};
use crate::error::Fault;
use crate::safetensors::{Dtype, TensorPlan, Writer, metadata};
use crate::{
    Bytes, Checkpoint, Existing, FormatError, OutputFile, OutputFolder, Result, TensorInfo, map_file,
};

/// The file that says which file each tensor is in.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Files of a checkpoint that readers accept.
const MOST_SHARDS: usize = 10_000;

/// The files that safetensors are written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shards {
    /// Files of the same names and with the same tensors as the base's.
    #[default]
    Kept,
    /// `model-00001-of-0000N.safetensors` with an index, or `model.safetensors` alone if all tensors fit into it.
    Limited {
        /// The most bytes of tensors in a file. A larger tensor has a file of its own.
        most_bytes: NonZeroU64,
    },
}

/// Writes all arrays of the base's `files` into `folder`.
pub(crate) fn write(
    base: &Checkpoint,
    changes: &Changes<'_>,
    files: &[&Path],
    most_bytes: NonZeroU64,
    folder: &OutputFolder,
) -> Result<()> {
    let mut maps = HashMap::new();
    let mut texts: Vec<(String, String)> = Vec::new();
    for file in files {
        let bytes = map_file(file)?;
        for (key, text) in metadata(file, &bytes)? {
            // What two files say of one thing is said by the first.
            if texts.iter().all(|(known, _)| *known != key) {
                texts.push((key, text));
            }
        }
        maps.insert(*file, bytes);
    }
    let texts: Vec<(&str, &str)> = texts.iter().map(|(key, text)| (&**key, &**text)).collect();
    let shards = split(base.stored(), most_bytes.get());
    if shards.len() > MOST_SHARDS {
        let problem =
            format!("{} files of up to {most_bytes} bytes, expected at most {MOST_SHARDS}", shards.len());
        return Err(Fault::new(base.path(), problem).hint("allow larger files").unwritable());
    }
    let (mut map, mut total_bytes) = (Map::new(), 0);
    for (at, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            all => format!("model-{:05}-of-{all:05}.safetensors", at + 1),
        };
        write_one(shard, changes, &maps, &texts, &folder.file(&name))?;
        for info in shard {
            map.insert(info.name.clone(), Value::from(name.as_str()));
            total_bytes += size(info);
        }
    }
    if shards.len() == 1 {
        return Ok(());
    }
    let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": map });
    let path = folder.file(INDEX);
    let mut output = OutputFile::create(&path, Existing::Replace)?;
    writeln!(output, "{index:#}").map_err(|source| FormatError::io(&path, source))?;
    output.commit()
}

/// The tensors of each file, as `huggingface_hub` splits them: in order, until the next tensor would exceed the limit. A tensor
/// larger than the limit gets a file of its own, and later tensors continue the file before it.
fn split(infos: &[TensorInfo], most_bytes: u64) -> Vec<Vec<&TensorInfo>> {
    let (mut shards, mut current, mut bytes) = (Vec::new(), Vec::new(), 0_u64);
    for info in infos {
        let own = size(info);
        if own > most_bytes {
            shards.push(vec![info]);
            continue;
        }
        if bytes + own > most_bytes {
            shards.push(std::mem::take(&mut current));
            bytes = 0;
        }
        current.push(info);
        bytes += own;
    }
    if !current.is_empty() {
        shards.push(current);
    }
    shards
}

/// The bytes of a tensor. Safetensors always say how many.
fn size(info: &TensorInfo) -> u64 {
    info.size_bytes.unwrap_or(0)
}

fn write_one(
    shard: &[&TensorInfo],
    changes: &Changes<'_>,
    maps: &HashMap<&Path, Bytes>,
    texts: &[(&str, &str)],
    to: &Path,
) -> Result<()> {
    let plan = |info: &&TensorInfo| {
        let unwritable = || {
            let problem = format!("an element type that is not written: {}", info.type_name);
            Fault::new(&*info.file, problem).of(info.name.as_str()).unsupported()
        };
        let dtype = Dtype::from_name(&info.type_name).ok_or_else(unwritable)?;
        let shape = info.shape.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
        Ok(TensorPlan { name: info.name.clone(), dtype, shape })
    };
    let plans = shard.iter().map(plan).collect::<Result<Vec<_>>>()?;
    let mut writer = Writer::create(OutputFile::create(to, Existing::Replace)?, texts, &plans)?;
    for info in shard {
        let at = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let range = at(info.offset_bytes)..at(info.offset_bytes.saturating_add(size(info)));
        let Some(bytes) = maps.get(&*info.file).and_then(|bytes| bytes.get(range)) else {
            let fault = Fault::new(&*info.file, "changed since it was opened");
            return Err(fault.of(info.name.as_str()).malformed());
        };
        match (info.format, changes.get(info.name.as_str())) {
            (Some(format), Some(changes)) => {
                pieces(bytes, format, changes, &mut |piece| writer.write(&info.name, piece))?;
            }
            _ => writer.write(&info.name, bytes)?,
        }
    }
    writer.finish()
}
