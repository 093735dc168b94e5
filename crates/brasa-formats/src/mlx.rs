//! MLX affine quantisation: from `config.json` and triples of arrays to single tensors.
//!
//! A module `X` that is quantised stores `X.weight` (packed U32 words), `X.scales` and `X.biases` (floats, one of each
//! per group). The bit width is global, with overrides per module. Other schemes that hide behind the same
//! configuration keys are refused by name.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use crate::error::Fault;
use crate::problems::Problems;
use crate::safetensors::{Dtype, RawTensor};
use crate::{FormatError, MlxAffine, Payload, Result, StorageFormat, Tensor};

const DEFAULT_BITS: u64 = 4;
const DEFAULT_GROUP_SIZE: u64 = 64;

/// The quantisation of a checkpoint's modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// Parameters of every module without an override.
    pub default: MlxAffine,
    /// By module path; `None` for a module that is not quantised.
    pub overrides: HashMap<String, Option<MlxAffine>>,
}

impl Quantization {
    /// Reads the quantisation block of `config.json`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`FormatError::Unsupported`] for other schemes (AWQ, GPTQ, MXFP4…) and for bit widths or group sizes that MLX
    /// does not make.
    pub fn from_config(path: &Path, config: &Value) -> Result<Option<Self>> {
        // Multimodal checkpoints keep the language model's settings one level down.
        for scope in [Some(config), config.get("text_config")].into_iter().flatten() {
            if let Some(block) = scope.get("quantization").filter(|block| !block.is_null()) {
                return Self::from_block(path, "quantization", block).map(Some);
            }
            if let Some(block) = scope.get("quantization_config").filter(|block| !block.is_null()) {
                if let Some(method) = block.get("quant_method").and_then(Value::as_str) {
                    return Err(foreign(path, method));
                }
                return Self::from_block(path, "quantization_config", block).map(Some);
            }
        }
        Ok(None)
    }

    fn from_block(path: &Path, key: &str, block: &Value) -> Result<Self> {
        let Some(block) = block.as_object() else {
            return Err(Fault::new(path, format!("found {block}, expected an object")).of(key).malformed());
        };
        if let Some(method) = block.get("quant_method").and_then(Value::as_str) {
            return Err(foreign(path, method));
        }
        let default = affine(path, key, block)?;
        let mut overrides = HashMap::new();
        for (module, setting) in block {
            let setting = match setting {
                Value::Bool(false) => None,
                Value::Bool(true) => Some(default),
                // As in MLX, what an override leaves out has MLX's default, not the value for the others.
                Value::Object(object) => Some(affine(path, &format!("{key}.{module}"), object)?),
                // `bits`, `group_size`, `mode` and the exporter's notes.
                _ => continue,
            };
            overrides.insert(module.clone(), setting);
        }
        Ok(Self { default, overrides })
    }

    /// The parameters of `module`; `None` if it is not quantised.
    pub fn of_module(&self, module: &str) -> Option<MlxAffine> {
        self.overrides.get(module).copied().unwrap_or(Some(self.default))
    }
}

fn affine(path: &Path, key: &str, block: &serde_json::Map<String, Value>) -> Result<MlxAffine> {
    let present = |name: &str| block.get(name).filter(|value| !value.is_null());
    if let Some(mode) = present("mode").filter(|mode| mode.as_str() != Some("affine")) {
        let shown = mode.as_str().map_or_else(|| mode.to_string(), str::to_owned);
        return Err(Fault::new(path, format!("MLX mode {shown} is not read, expected affine"))
            .of(key)
            .hint("make one with `mlx_lm.convert -q --q-mode affine`, or use the unquantised checkpoint")
            .unsupported());
    }
    let number = |name: &str, default: u64| match present(name) {
        None => Ok(default),
        Some(value) => value.as_u64().ok_or_else(|| {
            Fault::new(path, format!("{name}: found {value}, expected an integer")).of(key).malformed()
        }),
    };
    let bits = number("bits", DEFAULT_BITS)?;
    let group_size = number("group_size", DEFAULT_GROUP_SIZE)?;
    if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) {
        let problem = format!("{bits} bits, expected 2, 3, 4, 5, 6 or 8");
        return Err(Fault::new(path, problem).of(key).unsupported());
    }
    if !(8..=1 << 20).contains(&group_size) || group_size % 8 != 0 {
        let problem = format!("groups of {group_size}, expected a multiple of 8, usually 32, 64 or 128");
        return Err(Fault::new(path, problem).of(key).unsupported());
    }
    Ok(MlxAffine { bits: bits as u8, group_size: group_size as u32 })
}

fn foreign(path: &Path, method: &str) -> FormatError {
    let method = crate::error::Printable(method);
    Fault::new(path, format!("weights quantised with {method} are not read"))
        .of("quantization_config")
        .hint(
            "use the unquantised checkpoint (`brasa quantize` makes it smaller), a GGUF file, or an MLX affine \
             checkpoint of this model",
        )
        .unsupported()
}

/// Turns the arrays of a checkpoint into tensors, in the order of the files: triples become one tensor, floats stay,
/// integers that are no weights are left out, and weights that cannot be read are reported.
pub(crate) fn assemble(
    raws: &[RawTensor],
    quantization: Option<&Quantization>,
    problems: &mut Problems,
) -> Vec<Tensor> {
    // Only packed words have siblings to look for.
    let packed = raws.iter().any(|raw| raw.dtype == Some(Dtype::U32));
    let named = raws.iter().filter(|_| packed).map(|raw| (raw.name.as_str(), raw));
    let by_name: HashMap<&str, &RawTensor> = named.collect();
    let mut tensors = Vec::new();
    for raw in raws {
        match classify(raw, &by_name) {
            Kind::PartOfTriple | Kind::Ignored => {}
            Kind::Float(format) => {
                if let Some(bytes) = &raw.bytes {
                    let (name, shape) = (raw.name.clone(), raw.shape.clone());
                    tensors.push(Tensor { name, shape, format, payload: Payload::Blocks(bytes.clone()) });
                }
            }
            Kind::Triple(triple) => match triple.tensor(quantization) {
                Ok(tensor) => tensors.extend(tensor),
                Err(error) => problems.push(error),
            },
            Kind::Refused(problem) => problems.push(
                Fault::new(&*raw.file, problem)
                    .of(raw.name.as_str())
                    .hint("use a checkpoint in F32, F16 or BF16, a GGUF file, or an MLX affine checkpoint")
                    .unsupported(),
            ),
        }
    }
    tensors
}

enum Kind<'a> {
    Float(StorageFormat),
    Triple(Triple<'a>),
    /// Scales or biases of a packed weight.
    PartOfTriple,
    /// The array holds position numbers or a mask, which no model computes with.
    Ignored,
    Refused(String),
}

fn classify<'a>(raw: &'a RawTensor, by_name: &HashMap<&str, &'a RawTensor>) -> Kind<'a> {
    let sibling = |module: &str, part: &str| by_name.get(format!("{module}.{part}").as_str()).copied();
    let packed =
        |module: &str| sibling(module, "weight").is_some_and(|weight| weight.dtype == Some(Dtype::U32));

    if !by_name.is_empty()
        && let Some(module) = raw.name.strip_suffix(".scales").or_else(|| raw.name.strip_suffix(".biases"))
        && packed(module)
    {
        return Kind::PartOfTriple;
    }
    let Some(dtype) = raw.dtype else {
        return Kind::Refused(format!("unknown dtype \"{}\"", crate::error::Printable(&raw.dtype_name)));
    };
    if let Some(format) = dtype.float_format() {
        return Kind::Float(format);
    }
    if let Some(module) = raw.name.strip_suffix(".weight")
        && dtype == Dtype::U32
        && let Some(scales) = sibling(module, "scales")
    {
        return Kind::Triple(Triple { module, words: raw, scales, biases: sibling(module, "biases") });
    }
    if !dtype.is_integer() {
        return Kind::Refused(format!("stored as {dtype}, which is not read"));
    }
    // What quantisers of other schemes call their integers.
    let last = raw.name.rsplit('.').next().unwrap_or_default();
    let weight_like = matches!(last, "weight" | "qweight" | "qzeros" | "weight_packed" | "weight_scale")
        || last.ends_with("_blocks")
        || (last.ends_with("_scales") && dtype == Dtype::U8);
    if weight_like {
        return Kind::Refused(format!("a quantised weight stored as {dtype}, of a scheme that is not read"));
    }
    Kind::Ignored
}

struct Triple<'a> {
    module: &'a str,
    words: &'a RawTensor,
    scales: &'a RawTensor,
    biases: Option<&'a RawTensor>,
}

impl Triple<'_> {
    /// The single tensor; `None` if mistakes of its arrays have been reported already.
    fn tensor(&self, quantization: Option<&Quantization>) -> Result<Option<Tensor>> {
        let (words, scales) = (self.words, self.scales);
        let fault = |problem: String| Fault::new(&*words.file, problem).of(words.name.as_str());
        let settings = "the settings are `bits` and `group_size` under `quantization` in config.json";

        let Some(quantization) = quantization else {
            let problem = "packed words with scales, but config.json has no `quantization`".into();
            return Err(fault(problem).hint(settings).malformed());
        };
        let Some(affine) = quantization.of_module(self.module) else {
            let problem = "packed words with scales, but config.json says it is not quantised".into();
            return Err(fault(problem).hint(settings).malformed());
        };
        let Some(biases) = self.biases else {
            let problem = format!("{}.scales has no {}.biases beside it", self.module, self.module);
            return Err(fault(problem).hint("only MLX mode affine is read").unsupported());
        };
        let Some(scale_format) = scales.dtype.and_then(Dtype::float_format) else {
            let problem = format!("scales stored as {}, expected F16, BF16 or F32", scales.dtype_name);
            return Err(fault(problem).hint("only MLX mode affine is read").unsupported());
        };
        if biases.dtype != scales.dtype || biases.shape != scales.shape {
            let problem = format!(
                "biases {:?} of {} beside scales {:?} of {}, expected the same",
                biases.shape, biases.dtype_name, scales.shape, scales.dtype_name
            );
            return Err(fault(problem).malformed());
        }

        let (Some((&word_cols, rows)), Some((&scale_cols, scale_rows))) =
            (words.shape.split_last(), scales.shape.split_last())
        else {
            return Err(fault("a scalar cannot be packed".into()).malformed());
        };
        let inputs = word_cols.checked_mul(32).filter(|bits| bits % usize::from(affine.bits) == 0);
        let inputs = inputs.map(|bits| bits / usize::from(affine.bits));
        let grouped = scale_cols.checked_mul(affine.group_size as usize);
        let (Some(inputs), true) = (inputs, inputs == grouped && rows == scale_rows) else {
            let problem = format!(
                "{:?} words at {} bits do not fit {:?} scales, one for {} inputs",
                words.shape, affine.bits, scales.shape, affine.group_size
            );
            return Err(fault(problem).hint(settings).malformed());
        };

        let (Some(word_bytes), Some(scale_bytes), Some(bias_bytes)) =
            (&words.bytes, &scales.bytes, &biases.bytes)
        else {
            return Ok(None);
        };
        let mut shape = rows.to_vec();
        shape.push(inputs);
        Ok(Some(Tensor {
            name: words.name.clone(),
            shape,
            format: StorageFormat::MlxAffine(affine),
            payload: Payload::Mlx {
                words: word_bytes.clone(),
                scales: scale_bytes.clone(),
                biases: bias_bytes.clone(),
                scale_format,
            },
        }))
    }
}
