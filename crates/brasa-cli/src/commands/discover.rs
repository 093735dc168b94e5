//! `brasa discover`: the models below a folder.

use serde_json::json;

use crate::args::DiscoverArguments;
use crate::failure::Failure;
use crate::output;

/// Lists models.
pub fn discover(arguments: &DiscoverArguments) -> Result<(), Failure> {
    let models = brasa::discover(&arguments.directory)?;
    if arguments.json {
        let models: Vec<_> = models
            .iter()
            .map(|model| {
                json!({
                    "path": model.path,
                    "container": model.container,
                    "architecture": model.architecture,
                    "kind": model.kind.map(brasa::ModelKind::name),
                    "quantization": model.quantization,
                    "parameters": model.parameters,
                    "size_bytes": model.size_bytes,
                    "files": model.files,
                    "problem": model.problem,
                })
            })
            .collect();
        return output::line(&serde_json::Value::from(models).to_string());
    }
    for model in &models {
        let line = format!(
            "{:<12} {:<12} {:<12} {:>10}  {}",
            model.container,
            model.architecture.as_deref().unwrap_or("?"),
            model.quantization.as_deref().unwrap_or("?"),
            indicatif::HumanBytes(model.size_bytes).to_string(),
            model.path.display(),
        );
        let Some(problem) = model.problem.as_deref().and_then(|problem| problem.lines().next()) else {
            output::line(&line)?;
            continue;
        };
        // A problem has the next lines for itself if it does not fit.
        let whole = format!("{line}  ({problem})");
        if whole.chars().count() <= output::COLUMNS {
            output::line(&whole)?;
        } else {
            output::line(&line)?;
            output::line(&output::wrapped(&format!("({problem})"), 4))?;
        }
    }
    if models.is_empty() {
        output::note(&format!("no models below {}", arguments.directory.display()));
    }
    Ok(())
}
