//! Kernels of the CPU device compiled for aarch64 and run under user-mode emulation.
//!
//! One processor has all instruction sets that there are kernels for, the other has none beyond the baseline: the first
//! shows that the kernels are right, the second that none of them runs where it must not. Nothing here is timed:
//! emulation says nothing about speed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::succeed;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Folder of the C library for programs of the other architecture.
const C_LIBRARY: &str = "/usr/aarch64-linux-gnu";
/// Debian's compiler, and its library for the target, unpacked by `.ci/install-aarch64`.
const DEBIAN_COMPILER: &str = "/usr/bin/rustc";
const DEBIAN_SYSROOT: &str = "target/aarch64-std/usr";

/// An emulated processor: its name, its best instruction set, and which modules of the suite run on it. Unit tests run on
/// both.
const PROCESSORS: &[(&str, &str, &[&str])] = &[
    ("max", "i8mm", &["linear::", "linear_bits::", "ops::"]),
    ("cortex-a72", "neon", &["linear::", "linear_bits::"]),
];

/// Outcome of the step.
pub enum Outcome {
    Passed,
    Failed(String),
    /// This machine lacks something, and what.
    Skipped(String),
}

/// Builds and runs the tests on each processor, with the commands that `cargo` makes.
pub fn run(cargo: &dyn Fn() -> Command) -> Outcome {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(missing) => return Outcome::Skipped(missing),
    };
    // Another compiler's library is no use to the linter.
    if matches!(compiler, Compiler::Pinned) {
        eprintln!("== aarch64: clippy");
        let clippy =
            ["clippy", "--package", "brasa-cpu", "--target", TARGET, "--all-targets", "--", "-D", "warnings"];
        if let Err(failure) = succeed(cargo().args(clippy), "clippy") {
            return Outcome::Failed(failure);
        }
    }
    // Both binaries at once: each has the kernels, which one core compiles.
    eprintln!("== aarch64: building the tests of brasa-cpu");
    let mut build = compiler.cargo(cargo);
    build.args([
        "test",
        "--no-run",
        "--package",
        "brasa-cpu",
        "--target",
        TARGET,
        "--lib",
        "--test",
        "suite",
    ]);
    if let Err(failure) = succeed(&mut build, "building the tests") {
        return Outcome::Failed(failure);
    }
    for (processor, isa, modules) in PROCESSORS {
        let unit_tests: &[&str] = &["--lib"];
        let suite: Vec<&str> = ["--test", "suite", "--"].iter().chain(*modules).copied().collect();
        for tests in [unit_tests, &suite] {
            let mut cargo = compiler.cargo(cargo);
            cargo.args(["test", "--package", "brasa-cpu", "--target", TARGET]).args(tests);
            let runner = format!("{EMULATOR} -cpu {processor} -L {C_LIBRARY}");
            cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
            // Tests of the best instruction set fail where it was not found.
            cargo.env("BRASA_ISA", isa);
            eprintln!("== aarch64: brasa-cpu on an emulated {processor}: {}", tests.join(" "));
            if let Err(failure) = succeed(&mut cargo, &format!("tests on {processor}")) {
                return Outcome::Failed(failure);
            }
        }
    }
    Outcome::Passed
}

/// Compiler for the target.
enum Compiler {
    /// The toolchain of everything else, with its own library for the target.
    Pinned,
    /// Debian's.
    Debian { sysroot: String },
}

impl Compiler {
    /// Cargo with this compiler and a linker for the target.
    fn cargo(&self, cargo: &dyn Fn() -> Command) -> Command {
        let mut cargo = cargo();
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        if let Self::Debian { sysroot } = self {
            cargo.env("RUSTC", DEBIAN_COMPILER);
            cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", format!("--sysroot={sysroot}"));
            // Two compilers would undo each other's work in one folder.
            cargo.env("CARGO_TARGET_DIR", root().join("target/aarch64-debian"));
        }
        cargo
    }

    /// Finds a compiler, a linker and an emulator; else says which is missing.
    fn find() -> Result<Self, String> {
        for program in [LINKER, EMULATOR] {
            let found = Command::new(program).arg("--version").output();
            if !found.is_ok_and(|output| output.status.success()) {
                return Err(format!("{program} is not installed"));
            }
        }
        if !Path::new(C_LIBRARY).join("lib/libc.so.6").exists() {
            return Err(format!("no C library in {C_LIBRARY}"));
        }
        if output("rustc", &["--print", "target-libdir", "--target", TARGET])
            .is_some_and(|libraries| Path::new(&libraries).is_dir())
        {
            return Ok(Self::Pinned);
        }
        let sysroot = root().join(DEBIAN_SYSROOT);
        if !sysroot.join("lib/rustlib").join(TARGET).is_dir() {
            return Err(format!("no standard library for {TARGET}, neither the toolchain's nor Debian's"));
        }
        let version = output(DEBIAN_COMPILER, &["--version"]).unwrap_or_default();
        let minor = version.split(['.', ' ']).nth(2).and_then(|minor| minor.parse().ok()).unwrap_or(0);
        let needed = env!("CARGO_PKG_RUST_VERSION").split('.').nth(1).and_then(|minor| minor.parse().ok());
        if minor < needed.unwrap_or(0_u32) {
            let needed = env!("CARGO_PKG_RUST_VERSION");
            return Err(format!("{DEBIAN_COMPILER} is `{version}`, the workspace needs {needed}"));
        }
        Ok(Self::Debian { sysroot: sysroot.display().to_string() })
    }
}

/// The workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Trimmed output of a program; `None` if it cannot be run or fails.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
