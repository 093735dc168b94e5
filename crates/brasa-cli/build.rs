//! Records the commit for `brasa bench`. Outside a repository there is none.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The log of where HEAD pointed changes with every commit and every checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(commit) = git(&["rev-parse", "--short=9", "HEAD"]) {
        println!("cargo:rustc-env=BRASA_COMMIT={commit}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
