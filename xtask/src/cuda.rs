//! Compiles the kernels of `brasa-cuda` and embeds them.
//!
//! The compiler is the one that `NVCC` names, or `nvcc` of the path. Without a CUDA toolkit, Python wheels have it:
//!
//! ```text
//! pip install --no-deps --target cuda nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* \
//!     nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*
//! NVCC=cuda/nvidia/cu13/bin/nvcc cargo xtask cuda
//! ```
//!
//! `cargo xtask cuda plain flash` compiles the images of these sources alone, where the others' sources did not change.
//!
//! Another version of the compiler makes other code. The embedded images were made by nvcc 13.0.88.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::succeed;

/// Machine code of compute capability 9.0.
const SM_90A: &[&str] = &["-gencode", "arch=compute_90a,code=sm_90a", "-cubin"];
/// Code that the driver compiles for any capability from 8.0.
const COMPUTE_80: &[&str] = &["-arch=compute_80", "-ptx"];

/// The embedded images: source, image, the compiler's arguments.
const IMAGES: &[(&str, &str, &[&str])] = &[
    ("plain/plain.cu", "plain.sm_90a.cubin", SM_90A),
    ("plain/plain.cu", "plain.compute_80.ptx", COMPUTE_80),
    ("hopper/decode.cu", "decode.sm_90a.cubin", SM_90A),
    ("hopper/gemm.cu", "gemm.sm_90a.cubin", SM_90A),
    ("hopper/experts.cu", "experts.sm_90a.cubin", SM_90A),
    ("hopper/flash.cu", "flash.sm_90a.cubin", SM_90A),
];

/// Hardest that deflate tries.
const LEVEL: u8 = 10;

/// Compiles and embeds the images of `sources`, or every image, and notes the sources.
pub fn embed(sources: &[String]) -> Result<(), String> {
    let is_known = |source: &&String| IMAGES.iter().any(|(_, image, _)| is_of(image, source));
    if let Some(unknown) = sources.iter().find(|source| !is_known(source)) {
        return Err(format!("no image is called {unknown}"));
    }
    current_tests("params", true)?;
    for (file, image) in images(sources)? {
        let bytes = image.len();
        std::fs::write(&file, image).map_err(|error| format!("{}: {error}", file.display()))?;
        eprintln!("{}: {bytes} bytes", file.display());
    }
    current_tests("embedded", true)
}

/// Checks that the embedded images are those that this compiler makes of the sources; without a compiler, that the sources are
/// those that the images were made of.
pub fn check() -> Result<(), String> {
    current_tests("current", false)?;
    check_images()
}

/// Checks that the embedded images are those that this compiler makes of the sources, and nothing if there is no compiler. That the sources are those of
/// the images is a test of `brasa-cuda`.
pub fn check_images() -> Result<(), String> {
    if compiler().is_err() {
        eprintln!("== cuda: skipped, kernels were not compiled: there is no nvcc");
        return Ok(());
    }
    for (file, image) in images(&[])? {
        let found = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        if found != image {
            return Err(format!(
                "{} is not what nvcc makes of the sources: run cargo xtask cuda",
                file.display()
            ));
        }
    }
    Ok(())
}

/// Runs the tests of `brasa-cuda` that compare generated files, or has them write the files.
fn current_tests(filter: &str, update: bool) -> Result<(), String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "--package", "brasa-cuda", "--lib", filter]);
    if update {
        cargo.env("BRASA_UPDATE", "1");
    }
    succeed(&mut cargo, "generated files of brasa-cuda")
}

/// True if the image `plain.sm_90a.cubin` is of the source `plain`.
fn is_of(image: &str, source: &str) -> bool {
    image.split('.').next() == Some(source)
}

/// Each image of `sources`, or every image, deflated, and where it belongs.
fn images(sources: &[String]) -> Result<Vec<(PathBuf, Vec<u8>)>, String> {
    let nvcc = compiler()?;
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/brasa-cuda/kernels");
    let scratch = std::env::temp_dir().join(format!("brasa-cuda-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let mut images = Vec::new();
    for (source, name, arguments) in IMAGES {
        if !sources.is_empty() && !sources.iter().any(|source| is_of(name, source)) {
            continue;
        }
        let out = scratch.join(name);
        let mut compile = Command::new(&nvcc);
        compile.args(["-std=c++17", "-O3", "-Werror", "all-warnings"]).args(*arguments).arg("-o").arg(&out);
        compile.arg(kernels.join(source));
        succeed(&mut compile, "nvcc")?;
        let image = std::fs::read(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        let file = kernels.join("embedded").join(format!("{name}.deflate"));
        images.push((file, miniz_oxide::deflate::compress_to_vec(&image, LEVEL)));
    }
    let _ = std::fs::remove_dir_all(&scratch);
    Ok(images)
}

/// The compiler that runs.
fn compiler() -> Result<PathBuf, String> {
    let nvcc = std::env::var_os("NVCC").map_or_else(|| PathBuf::from("nvcc"), PathBuf::from);
    let version = Command::new(&nvcc).arg("--version").output();
    match version {
        Ok(output) if output.status.success() => Ok(nvcc),
        _ => Err(format!("{} does not run; see the head of xtask/src/cuda.rs", nvcc.display())),
    }
}
