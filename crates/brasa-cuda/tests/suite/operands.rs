//! Weights that the fast kernels decode in registers: code of theirs, compiled for the CPU.

use std::process::Command;

use crate::device::compiled;

#[test]
fn operands_are_the_weights() {
    runs("operands.cpp", "operands of CUDA's fast kernels");
}

/// Also counts how often lanes read the same bank of shared memory at once: `--nocapture` shows it.
#[test]
fn a_warp_multiplies_codes() {
    runs("codes.cpp", "products of codes in CUDA's interpreter");
}

fn runs(source: &str, what: &str) {
    let Some(program) = compiled(source, &["-fno-strict-aliasing"]) else {
        brasa_fuzz::skipped(what, "needs g++");
        return;
    };
    let run = Command::new(program).output().expect("a program that runs");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}");
    println!("{said}");
}
