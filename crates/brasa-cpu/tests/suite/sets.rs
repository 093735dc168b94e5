//! The names of instruction sets, and which of them this machine lacks.

use brasa_cpu::{Error, Isa};
use brasa_fuzz::skipped;

/// Tests loop over the instruction sets that this machine has. What they leave out is reported here, once.
#[test]
fn every_known_set_is_there_or_reported_as_skipped() {
    let mut there = 0;
    for name in Isa::NAMES {
        match Isa::named(name) {
            Ok(isa) => {
                assert_eq!(isa.name(), name);
                there += 1;
            }
            Err(error) => {
                assert!(matches!(error, Error::IsaUnavailable { .. }), "{error}");
                skipped(&format!("the instruction set {name}"), "this processor lacks it");
            }
        }
    }
    let emulated =
        Isa::NAMES.into_iter().filter(|name| name.ends_with("-emulated") && Isa::named(name).is_ok());
    assert_eq!(there, Isa::choices().len() + emulated.count());
}
