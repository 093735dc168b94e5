//! The device under test: this machine's GPU, or an emulated one, or neither.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use brasa_cuda::{CudaBackend, CudaOptions, Driver};
use brasa_fuzz::skipped;
use brasa_graph::device::DeviceError;

/// The device under test; says that tests are skipped where there is none.
///
/// `BRASA_CUDA=emulated` asks for the emulated one although there is a GPU; `BRASA_CUDA=gpu` fails without a GPU.
pub fn device() -> Option<&'static CudaBackend> {
    static DEVICE: OnceLock<Option<CudaBackend>> = OnceLock::new();
    open(&DEVICE, &CudaOptions::default())
}

/// The device under test, whose rows have the same bits whatever else is in their step.
pub fn deterministic() -> Option<&'static CudaBackend> {
    static DEVICE: OnceLock<Option<CudaBackend>> = OnceLock::new();
    open(&DEVICE, &CudaOptions { deterministic: true, ..CudaOptions::default() })
}

/// The device under test, with launches of their own for what lies between products.
pub fn separate() -> Option<&'static CudaBackend> {
    static DEVICE: OnceLock<Option<CudaBackend>> = OnceLock::new();
    open(&DEVICE, &CudaOptions { separate_launches: true, ..CudaOptions::default() })
}

/// A backend of its own on the device under test, so that only its own memory is counted.
pub fn another(options: &CudaOptions) -> Option<CudaBackend> {
    device()?;
    Some(backend(options).expect("a device that can be used again"))
}

fn open(
    device: &'static OnceLock<Option<CudaBackend>>,
    options: &CudaOptions,
) -> Option<&'static CudaBackend> {
    let found = device.get_or_init(|| backend(options));
    if found.is_none() {
        skipped("kernels for CUDA", "needs an NVIDIA GPU, or g++ to emulate one");
    }
    found.as_ref()
}

/// A backend of its own, in a process where none may be kept for other tests.
pub fn backend(options: &CudaOptions) -> Option<CudaBackend> {
    try_backend(options).map(|made| made.expect("a GPU that can be used"))
}

/// Like [`backend`], with the refusal of a GPU as an error.
pub fn try_backend(options: &CudaOptions) -> Option<Result<CudaBackend, DeviceError>> {
    let asked = std::env::var("BRASA_CUDA").unwrap_or_default();
    if asked == "gpu" || (asked != "emulated" && Driver::load(None).is_ok()) {
        return Some(CudaBackend::new(options));
    }
    let driver = Some(emulated_driver()?);
    Some(CudaBackend::new(&CudaOptions { driver, ..options.clone() }))
}

/// True if kernels run on the CPU, too slowly for large cases.
pub fn is_emulated(device: &CudaBackend) -> bool {
    device.device().name == "emulated GPU"
}

/// True on a GPU; on an emulated one only where sweeps are asked for. Says what is skipped.
pub fn in_full(device: &CudaBackend, what: &str) -> bool {
    !is_emulated(device) || brasa_fuzz::sweeps(&format!("{what} on an emulated GPU"))
}

/// `full` on a GPU, `few` on an emulated one, which is slow.
pub fn full_or_few<T>(device: &CudaBackend, full: T, few: T) -> T {
    if is_emulated(device) { few } else { full }
}

/// The driver library that runs kernels on the CPU.
pub fn emulated_driver() -> Option<PathBuf> {
    compiled("driver.cpp", &["-fPIC", "-shared", "-fvisibility=hidden"])
}

/// The program or library that g++ compiles from a source in `emulation`, once for each state of the sources there and of the kernels; `None`
/// where there is no g++.
pub fn compiled(source: &str, flags: &[&str]) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut hasher = DefaultHasher::new();
    for folder in ["emulation", "kernels/plain", "kernels/hopper"] {
        let entries = std::fs::read_dir(root.join(folder)).ok()?;
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        for file in files {
            std::fs::read(&file).expect("a source").hash(&mut hasher);
        }
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let product = folder.join(format!("{source}-{:016x}", hasher.finish()));
    if product.exists() {
        return Some(product);
    }
    std::fs::create_dir_all(folder).expect("a folder for what is compiled");
    // Another process may compile as well: whoever is last replaces an equal file.
    let unfinished = folder.join(format!("{source}-{}", std::process::id()));
    let compiled = Command::new("g++")
        .args(["-std=c++17", "-O2", "-ffp-contract=off"])
        .args(["-DBRASA_EMULATION", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"])
        .args(flags)
        .args(of_this_processor())
        .arg("-I")
        .arg(root.join("emulation"))
        .arg("-o")
        .arg(&unfinished)
        .arg(root.join("emulation").join(source))
        .output()
        .ok()?;
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    std::fs::rename(&unfinished, &product).expect("what was compiled can be moved");
    Some(product)
}

/// Flags that make variables of a thread, conversions of f16 and `fmaf` cheap.
fn of_this_processor() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") && std::arch::is_x86_feature_detected!("fma") {
        return &["-mtls-dialect=gnu2", "-mf16c", "-mfma"];
    }
    &[]
}
