//! Copies a checkpoint's tensors and metadata into one new file:
//! `cargo run -p brasa-formats --example rewrite -- IN OUT`, where OUT ends in `.gguf` or `.safetensors`.

use std::error::Error;
use std::path::Path;

use brasa_formats::safetensors::Dtype;
use brasa_formats::{
    Bytes, Checkpoint, Existing, Metadata, OutputFile, Payload, StorageFormat, gguf, safetensors,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [from, to] = arguments.as_slice() else { return Err("usage: rewrite IN OUT".into()) };
    let checkpoint = Checkpoint::open(from)?;
    let to = Path::new(to);
    if to.extension().is_some_and(|extension| extension == "gguf") {
        write_gguf(&checkpoint, to)
    } else {
        write_safetensors(&checkpoint, to)
    }
}

fn write_gguf(checkpoint: &Checkpoint, to: &Path) -> Result<(), Box<dyn Error>> {
    let metadata = match checkpoint.metadata() {
        Metadata::Gguf(metadata) => metadata.clone(),
        Metadata::Config(_) => gguf::Metadata::new(),
    };
    let plan = checkpoint.tensors().iter().map(|tensor| gguf::TensorPlan {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        format: tensor.format,
    });
    let mut writer =
        gguf::Writer::create(OutputFile::create(to, Existing::Keep)?, &metadata, plan.collect())?;
    for tensor in checkpoint.tensors() {
        if let Payload::Blocks(bytes) = &tensor.payload {
            writer.write(&tensor.name, bytes)?;
            bytes.release_pages();
        }
    }
    Ok(writer.finish()?)
}

fn write_safetensors(checkpoint: &Checkpoint, to: &Path) -> Result<(), Box<dyn Error>> {
    let dtype = |format| match format {
        StorageFormat::F32 => Ok(Dtype::F32),
        StorageFormat::F16 => Ok(Dtype::F16),
        StorageFormat::BF16 => Ok(Dtype::BF16),
        other => Err(format!("{other} has no place in safetensors")),
    };
    let mut arrays: Vec<(safetensors::TensorPlan, &Bytes)> = Vec::new();
    for tensor in checkpoint.tensors() {
        let mut add = |name: String, dtype, shape: &[usize], bytes| {
            arrays.push((safetensors::TensorPlan { name, dtype, shape: shape.to_vec() }, bytes));
        };
        match &tensor.payload {
            Payload::Blocks(bytes) => {
                add(tensor.name.clone(), dtype(tensor.format)?, &tensor.shape, bytes);
            }
            Payload::Mlx { words, scales, biases, scale_format } => {
                let module = tensor.name.trim_end_matches(".weight");
                let mut shape = tensor.shape.clone();
                let width = shape.pop().unwrap_or(1);
                let StorageFormat::MlxAffine(affine) = tensor.format else { unreachable!("MLX payload") };
                let with = |cols| [shape.as_slice(), &[cols]].concat();
                let groups = width / affine.group_size as usize;
                add(tensor.name.clone(), Dtype::U32, &with(width * usize::from(affine.bits) / 32), words);
                add(format!("{module}.scales"), dtype(*scale_format)?, &with(groups), scales);
                add(format!("{module}.biases"), dtype(*scale_format)?, &with(groups), biases);
            }
        }
    }
    let plans: Vec<_> = arrays.iter().map(|(plan, _)| plan.clone()).collect();
    let mut writer =
        safetensors::Writer::create(OutputFile::create(to, Existing::Keep)?, &[("format", "pt")], &plans)?;
    for (plan, bytes) in arrays {
        writer.write(&plan.name, bytes)?;
    }
    Ok(writer.finish()?)
}
