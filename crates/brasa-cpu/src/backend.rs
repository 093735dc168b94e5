//! The CPU as a device.

use std::sync::Arc;

use brasa_graph::Graph;
use brasa_graph::device::{
    Backend, DeviceError, DeviceInfo, KvPool, KvPoolSpec, Measure, Precision, Program, ProgramSpec, WeightSet,
};
use brasa_graph::fuse::Pattern;

use crate::compile::PATTERNS;
use crate::error::DEVICE;
use crate::kv::CpuKvPool;
use crate::program::{self, CpuProgram};
use crate::weights::CpuWeightSet;
use crate::{Isa, Team};

/// Rows of a prompt's chunk: more are no faster, and their values leave the caches.
const PROMPT_ROWS: usize = 512;

/// Texts that decode together: products of more rows are bound by arithmetic, and each text waits for all.
const DECODE_ROWS: usize = 16;

/// The processor that this program runs on.
///
/// Programs of one backend share its threads and take turns.
#[derive(Debug)]
pub struct CpuBackend {
    isa: Isa,
    team: Arc<Team>,
    patterns: &'static [Pattern],
}

/// Choices about the device that a caller may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the caller's included; `None` for one per core that this process may use.
    pub threads: Option<usize>,
    /// Instruction set; `None` for the best, or the one that `BRASA_ISA` names.
    pub isa: Option<Isa>,
    /// Forbids arithmetic that makes a row's result depend on the number of rows in its step, even if the instruction set offers
    /// it. A batch then equals its parts, and chunks equal the whole, bit for bit.
    pub deterministic: bool,
    /// Runs every operation on its own, without fusion. For comparisons.
    pub unfused: bool,
}

impl CpuBackend {
    /// Starts the device's threads.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unavailable`]: `BRASA_ISA` names what this processor lacks, or threads cannot be started.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let unavailable = |error: crate::Error| DeviceError::Unavailable {
            device: DEVICE.into(),
            reason: error.to_string(),
        };
        let isa = match options.isa {
            Some(isa) => isa,
            None => Isa::detect().map_err(unavailable)?,
        };
        let isa = if options.deterministic { isa.without_bf16() } else { isa };
        let threads = options.threads.unwrap_or_else(Team::default_threads);
        let team = Arc::new(Team::new(threads).map_err(unavailable)?);
        let patterns = if options.unfused { &[] } else { PATTERNS };
        Ok(Self { isa, team, patterns })
    }

    /// The instruction set of programs that multiply with `precision`.
    fn isa_of(&self, precision: Precision) -> Isa {
        match precision {
            Precision::Reference => self.isa.without_bf16(),
            Precision::Fast => self.isa,
        }
    }

    /// The instruction set that its kernels use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Barriers that the threads have passed together, as [`Team::barriers`] counts them.
    pub fn barriers(&self) -> u32 {
        self.team.barriers()
    }
}

impl Backend for CpuBackend {
    fn info(&self) -> DeviceInfo {
        let (isa, threads) = (self.isa.name(), self.team.threads());
        let others: Vec<_> = Isa::choices().into_iter().map(Isa::name).filter(|name| *name != isa).collect();
        let others = if others.is_empty() {
            String::new()
        } else {
            format!(" (it can also do {})", others.join(", "))
        };
        let model = processor_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        DeviceInfo {
            name: DEVICE.into(),
            description: format!(
                "{model}, computing with {isa}{others} on {threads} thread{}",
                if threads == 1 { "" } else { "s" }
            ),
            threads,
            memory_bytes: memory_bytes("MemTotal:"),
            prompt_rows: PROMPT_ROWS,
            decode_rows: DECODE_ROWS,
        }
    }

    /// The memory that Linux calls available, which counts page caches, since they give way.
    fn free_bytes(&self) -> Option<u64> {
        memory_bytes("MemAvailable:")
    }

    fn weight_set(&self, precision: Precision) -> Arc<dyn WeightSet> {
        Arc::new(CpuWeightSet::new(precision, Arc::clone(&self.team)))
    }

    fn measure(
        &self,
        graph: &Arc<Graph>,
        precision: Precision,
        spec: ProgramSpec,
    ) -> Result<Measure, DeviceError> {
        let weights = CpuWeightSet::measured(graph, precision, Arc::clone(&self.team))?;
        let isa = self.isa_of(precision);
        let arena_bytes = program::measure(graph, &weights, &spec.limits, self.patterns, isa)?;
        Ok(Measure { weight_bytes: weights.size_bytes(), arena_bytes })
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError> {
        Ok(Box::new(CpuKvPool::new(spec)))
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError> {
        let unsupported = |what: &str| DeviceError::Unsupported { device: DEVICE.into(), what: what.into() };
        let weights: Arc<CpuWeightSet> =
            weights.into_any().downcast().map_err(|_| unsupported("weights that another device uploaded"))?;
        let weights = weights.weights_of(&graph)?;
        let isa = self.isa_of(weights.precision());
        let team = Arc::clone(&self.team);
        let program = CpuProgram::new(&graph, weights, spec, self.patterns, isa, team)?;
        Ok(Box::new(program))
    }
}

/// Name that Linux gives the processor.
fn processor_name() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// A figure of this machine's memory, where Linux says.
fn memory_bytes(name: &str) -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kibibytes.checked_mul(1024)
}
