//! Lists what a model's files say: `cargo run -p brasa-formats --example list -- PATH`.

use brasa_formats::{Inspection, Metadata};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: list PATH")?;
    let inspection = Inspection::open(path)?;
    match inspection.metadata() {
        Some(Metadata::Gguf(metadata)) => {
            for (key, value) in metadata.iter() {
                println!("{key}: {}", value.value_type().name());
            }
        }
        Some(Metadata::Config(config)) => println!("{config:#}"),
        None => println!("no metadata"),
    }
    for info in inspection.tensors() {
        println!("{} {:?} {} at {}", info.name, info.shape, info.type_name, info.offset_bytes);
    }
    for tensor in inspection.readable_tensors() {
        println!("{} {:?} {}: {} bytes", tensor.name, tensor.shape, tensor.format, tensor.size_bytes());
    }
    for problem in inspection.problems() {
        println!("{problem}");
    }
    Ok(())
}
