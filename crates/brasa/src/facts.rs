//! Circumstances of a measurement, under the names of llama-bench.

use brasa_graph::device::KvType;
use serde_json::{Map, Value, json};

use crate::Model;

/// The model, the device and the build of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFacts {
    /// The commit that the program was built from, if known.
    pub build_commit: Option<&'static str>,
    /// The model's name or path.
    pub name: String,
    /// Architecture and main storage format, e.g. `qwen3 Q6_K`.
    pub description: String,
    /// Stored bytes of all tensors.
    pub size_bytes: u64,
    /// Elements of all tensors.
    pub parameters: u64,
    /// The device's short name.
    pub backend: String,
    /// The device's description.
    pub device: String,
    /// Threads of this process that compute.
    pub threads: usize,
    /// Element type of cached keys and values.
    pub kv_type: KvType,
}

impl RunFacts {
    /// The facts of a loaded model of this name.
    pub fn of(name: impl Into<String>, model: &Model) -> Self {
        let info = model.info();
        Self {
            build_commit: None,
            name: name.into(),
            description: format!("{} {}", info.architecture, info.main_format().unwrap_or_default()),
            size_bytes: info.size_bytes,
            parameters: info.parameters,
            backend: model.device().name.clone(),
            device: model.device().description.clone(),
            threads: model.device().threads,
            kv_type: model.inside().program_spec.kv_type,
        }
    }

    /// The name of the type of keys and values, as GGUF spells it.
    pub fn kv_name(&self) -> &'static str {
        kv_name(self.kv_type)
    }

    /// One line for people: architecture, name, bytes, parameters, device and threads.
    pub fn heading(&self) -> String {
        format!(
            "{} ({}): {:.2} MiB, {:.2} M parameters, {}, {} thread{}",
            self.description,
            self.name,
            self.size_bytes as f64 / (1 << 20) as f64,
            self.parameters as f64 / 1e6,
            self.backend,
            self.threads,
            if self.threads == 1 { "" } else { "s" }
        )
    }

    /// The facts under llama-bench's names.
    pub fn to_json(&self) -> Map<String, Value> {
        let facts = json!({
            "build_commit": self.build_commit,
            "build": env!("CARGO_PKG_VERSION"),
            "model": self.name,
            "model_type": self.description,
            "model_size": self.size_bytes,
            "model_n_params": self.parameters,
            "backend": self.backend,
            "device": self.device,
            "cpu_info": self.device.rsplitn(3, ", ").last(),
            "n_threads": self.threads,
            "type_k": self.kv_name(),
            "type_v": self.kv_name(),
        });
        let Value::Object(facts) = facts else { unreachable!("an object") };
        facts
    }
}

/// The name of a type of keys and values, as GGUF spells it.
pub(crate) fn kv_name(kv_type: KvType) -> &'static str {
    match kv_type {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        KvType::BF16 => "bf16",
        KvType::Q8 => "q8_0",
    }
}
