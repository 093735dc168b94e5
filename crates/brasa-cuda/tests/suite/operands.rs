//! Weights that the fast kernels decode in registers: code of theirs, compiled for the CPU.

use std::process::Command;

use crate::device::compiled;

#[test]
fn operands_are_the_weights() {
    let Some(program) = compiled("operands.cpp", &["-fno-strict-aliasing"]) else {
        brasa_fuzz::skipped("operands of CUDA's fast kernels", "needs g++");
        return;
    };
    let run = Command::new(program).output().expect("a program that runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}
