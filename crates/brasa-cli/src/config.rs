//! Options of `brasa serve` from the environment and from a file, used if the command line does not set them.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};

use crate::args::Arguments;
use crate::failure::Failure;
use crate::input;
use crate::paint::When;

/// Appends options from the environment and from the configuration file to the arguments. Only `serve` has such options.
///
/// # Errors
///
/// [`Failure::Usage`] for a file that cannot be read as options, naming the line or the key.
pub fn extend(mut arguments: Vec<OsString>, color: When) -> Result<Vec<OsString>, Failure> {
    let parser = Arguments::parser(color);
    if !arguments.iter().any(|word| word == "serve") {
        return Ok(arguments);
    }
    // Errors and requests for help are answered by the parser's second turn.
    let Ok(matches) = parser.clone().try_get_matches_from(&arguments) else { return Ok(arguments) };
    let (Some(serve), Some(matches)) = (parser.find_subcommand("serve"), matches.subcommand_matches("serve"))
    else {
        return Ok(arguments);
    };
    let options: Vec<&Arg> = serve.get_arguments().filter(|option| option.get_long().is_some()).collect();
    let file = file(&options, matches)?;
    for option in options {
        let long = option.get_long().unwrap_or_default();
        if matches.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine)
            || long == "config"
        {
            continue;
        }
        let values = match std::env::var(variable(long)) {
            Ok(value) if matches!(option.get_action(), ArgAction::Append) => {
                value.split(',').map(str::to_owned).collect()
            }
            Ok(value) => vec![value],
            Err(_) => match file.get(long) {
                Some(value) => texts(long, value)?,
                None => continue,
            },
        };
        for value in values {
            arguments.extend(word(option, long, &value)?);
        }
    }
    Ok(arguments)
}

/// The environment variable of an option.
fn variable(long: &str) -> String {
    format!("BRASA_{}", long.to_uppercase().replace('-', "_"))
}

/// The table of the configuration file; empty without a file.
fn file(options: &[&Arg], matches: &ArgMatches) -> Result<toml::Table, Failure> {
    let named: Option<std::path::PathBuf> = matches.get_one::<std::path::PathBuf>("config").cloned();
    let Some(path) = named.or_else(|| std::env::var_os("BRASA_CONFIG").map(Into::into)) else {
        return Ok(toml::Table::new());
    };
    let table: toml::Table =
        toml::from_str(&input::text(&path)?).map_err(|error| at(&path, &error.to_string()))?;
    let is_known = |key: &&String| {
        options.iter().any(|option| option.get_long() == Some(key) && key.as_str() != "config")
    };
    if let Some(key) = table.keys().find(|key| !is_known(key)) {
        let known: Vec<&str> =
            options.iter().filter_map(|option| option.get_long()).filter(|long| *long != "config").collect();
        return Err(at(&path, &format!("there is no option `{key}`; there are {}", known.join(", "))));
    }
    Ok(table)
}

fn at(path: &Path, problem: &str) -> Failure {
    Failure::Usage(format!("{}: {problem}", path.display()))
}

/// The values of a key, as words of the command line.
fn texts(key: &str, value: &toml::Value) -> Result<Vec<String>, Failure> {
    Ok(match value {
        toml::Value::String(text) => vec![text.clone()],
        toml::Value::Integer(number) => vec![number.to_string()],
        toml::Value::Float(number) => vec![number.to_string()],
        toml::Value::Boolean(switch) => vec![switch.to_string()],
        toml::Value::Array(items) => {
            let items = items.iter().map(|item| texts(key, item)).collect::<Result<Vec<_>, _>>()?;
            items.concat()
        }
        toml::Value::Table(_) | toml::Value::Datetime(_) => {
            return Err(Failure::Usage(format!(
                "`{key}` has to be a text, a number, a switch or a list of these"
            )));
        }
    })
}

/// An option and its value as a word of the command line; `None` for a switch that is off.
fn word(option: &Arg, long: &str, value: &str) -> Result<Option<OsString>, Failure> {
    if option.get_action().takes_values() {
        return Ok(Some(format!("--{long}={value}").into()));
    }
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" => Ok(Some(format!("--{long}").into())),
        "false" | "0" | "off" | "no" | "" => Ok(None),
        _ => Err(Failure::Usage(format!(
            "`{long}` ({}): expected true or false, found `{value}`",
            variable(long)
        ))),
    }
}
