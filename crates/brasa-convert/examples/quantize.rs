//! Converts a checkpoint: `quantize IN OUT TYPE`. `tools/verify_convert.py` uses it.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use brasa_convert::{Event, Options, Recipe, convert};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, recipe] = &args[..] else {
        return Err("usage: quantize IN OUT TYPE".into());
    };
    let options = Options::new(Recipe::parse(recipe)?);
    let summary = convert(Path::new(input), Path::new(output), &options, &mut |event| {
        match event {
            Event::Fallback { tensor, row_len, wanted, used } => {
                eprintln!("{tensor}: {used} instead of {wanted}, rows of {row_len}");
            }
            Event::Warning(warning) => eprintln!("{warning}"),
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    println!("{} tensors, {} bytes, {:.2} bpw", summary.tensors, summary.bytes, summary.bits_per_weight());
    Ok(())
}
