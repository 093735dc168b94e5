//! `brasa doctor`: a report on this machine, and a check that the built-in model gives the expected answer.

use std::ops::ControlFlow;
use std::time::Instant;

use brasa::{Backends, GenerateOptions, LoadOptions, Message, Model};
use serde_json::json;

use crate::args::DoctorArguments;
use crate::failure::Failure;
use crate::{bundled, output};

/// A word that the built-in model's answer to its question must contain, at temperature 0.
const EXPECTED_START: &str = "ember";

/// Prints the report; fails if the built-in model does not answer.
pub fn doctor(arguments: &DoctorArguments) -> Result<(), Failure> {
    let devices = brasa::devices();
    let backends = Backends::built_in();
    let answer = answer();
    let healthy = answer.as_ref().is_ok_and(|(text, _)| text.to_lowercase().contains(EXPECTED_START));
    if arguments.json {
        let devices: Vec<_> = devices
            .iter()
            .map(|device| match device {
                Ok(info) => json!({"name": info.name, "description": info.description, "memory_bytes": info.memory_bytes}),
                Err(error) => json!({"error": brasa::split_hint(&error.to_string()).0}),
            })
            .collect();
        let backends: Vec<_> = backends
            .iter()
            .map(|backend| match backend.available() {
                Ok(found) => json!({"name": backend.name(), "available": true, "description": found}),
                Err(why) => json!({"name": backend.name(), "available": false, "reason": why.reason}),
            })
            .collect();
        output::line(
            &json!({
                "version": env!("CARGO_PKG_VERSION"),
                "devices": devices,
                "backends": backends,
                "answer": answer.as_ref().ok().map(|(text, _)| text),
                "error": answer.as_ref().err().map(|error| brasa::split_hint(&error.to_string()).0.to_owned()),
                "healthy": healthy,
            })
            .to_string(),
        )?;
    } else {
        output::line(&format!(
            "brasa {} on {} {}",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH
        ))?;
        for info in devices.iter().flatten() {
            output::line(&format!("device {}: {}", info.name, info.description))?;
        }
        // The reasons of devices that cannot be used are among those of the backends.
        for backend in backends.iter() {
            match backend.available() {
                Ok(_) => output::line(&format!("backend {}: available", backend.name()))?,
                Err(why) => output::line(&why.to_string())?,
            }
        }
        match &answer {
            Ok((text, seconds)) => {
                output::line(&format!("> {}\n{}", bundled::QUESTION, text.trim_end()))?;
                output::line(&format!("answered by {} in {seconds:.2} s", bundled::NAME))?;
            }
            Err(error) => output::line(&format!("{}: {error}", bundled::NAME))?,
        }
    }
    if healthy {
        Ok(())
    } else {
        Err(Failure::Failed("the built-in model does not answer as it should".into()))
    }
}

fn answer() -> Result<(String, f64), brasa::Error> {
    let started = Instant::now();
    let model =
        Model::from_gguf_bytes(bundled::MODEL, &LoadOptions::default(), |_| ControlFlow::Continue(()))?;
    let options = GenerateOptions { max_tokens: Some(64), ..GenerateOptions::default() };
    let text = model.chat(&[Message::new("user", bundled::QUESTION)], &options)?.into_text()?;
    Ok((text, started.elapsed().as_secs_f64()))
}
