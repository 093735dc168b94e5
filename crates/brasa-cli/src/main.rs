//! The `brasa` command.

fn main() {}
