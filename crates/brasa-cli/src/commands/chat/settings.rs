//! `/set`: options of the answers, shown and changed. Values are checked like those of flags.

use brasa::GenerateOptions;

use crate::failure::Failure;
use crate::{sampling, values};

/// An option that `/set` can change.
struct Setting {
    name: &'static str,
    /// Other names of the option, as other programs spell it.
    aliases: &'static [&'static str],
    show: fn(&GenerateOptions) -> String,
    set: fn(&mut GenerateOptions, &str) -> Result<(), String>,
}

/// All options, in the order in which they are shown.
const SETTINGS: &[Setting] = &[
    Setting {
        name: "temp",
        aliases: &["temperature"],
        show: |options| options.sampling.temperature.to_string(),
        set: |options, text| values::temperature(text).map(|value| options.sampling.temperature = value),
    },
    Setting {
        name: "top_k",
        aliases: &[],
        show: |options| options.sampling.top_k.to_string(),
        set: |options, text| values::top_k(text).map(|value| options.sampling.top_k = value),
    },
    Setting {
        name: "top_p",
        aliases: &[],
        show: |options| options.sampling.top_p.to_string(),
        set: |options, text| values::top_p(text).map(|value| options.sampling.top_p = value),
    },
    Setting {
        name: "min_p",
        aliases: &[],
        show: |options| options.sampling.min_p.to_string(),
        set: |options, text| values::min_p(text).map(|value| options.sampling.min_p = value),
    },
    Setting {
        name: "typical_p",
        aliases: &["typical"],
        show: |options| options.sampling.typical_p.to_string(),
        set: |options, text| values::typical_p(text).map(|value| options.sampling.typical_p = value),
    },
    Setting {
        name: "top_n_sigma",
        aliases: &["top_nsigma"],
        show: |options| options.sampling.top_n_sigma.to_string(),
        set: |options, text| values::top_n_sigma(text).map(|value| options.sampling.top_n_sigma = value),
    },
    Setting {
        name: "xtc_probability",
        aliases: &[],
        show: |options| options.sampling.xtc_probability.to_string(),
        set: |options, text| {
            values::xtc_probability(text).map(|value| options.sampling.xtc_probability = value)
        },
    },
    Setting {
        name: "xtc_threshold",
        aliases: &[],
        show: |options| options.sampling.xtc_threshold.to_string(),
        set: |options, text| values::xtc_threshold(text).map(|value| options.sampling.xtc_threshold = value),
    },
    Setting {
        name: "dynatemp_range",
        aliases: &[],
        show: |options| options.sampling.dynatemp_range.to_string(),
        set: |options, text| {
            values::dynatemp_range(text).map(|value| options.sampling.dynatemp_range = value)
        },
    },
    Setting {
        name: "dynatemp_exp",
        aliases: &["dynatemp_exponent"],
        show: |options| options.sampling.dynatemp_exponent.to_string(),
        set: |options, text| {
            values::dynatemp_exponent(text).map(|value| options.sampling.dynatemp_exponent = value)
        },
    },
    Setting {
        name: "repeat_penalty",
        aliases: &[],
        show: |options| options.sampling.repeat_penalty.to_string(),
        set: |options, text| {
            values::repeat_penalty(text).map(|value| options.sampling.repeat_penalty = value)
        },
    },
    Setting {
        name: "repeat_last_n",
        aliases: &[],
        show: |options| limit(options.sampling.repeat_last_n),
        set: |options, text| values::limit(text).map(|value| options.sampling.repeat_last_n = value),
    },
    Setting {
        name: "frequency_penalty",
        aliases: &[],
        show: |options| options.sampling.frequency_penalty.to_string(),
        set: |options, text| values::penalty(text).map(|value| options.sampling.frequency_penalty = value),
    },
    Setting {
        name: "presence_penalty",
        aliases: &[],
        show: |options| options.sampling.presence_penalty.to_string(),
        set: |options, text| values::penalty(text).map(|value| options.sampling.presence_penalty = value),
    },
    Setting {
        name: "seed",
        aliases: &[],
        show: |options| options.sampling.seed.to_string(),
        set: |options, text| {
            options.sampling.seed = values::seed(text)?.unwrap_or_else(sampling::fresh_seed);
            Ok(())
        },
    },
    Setting {
        name: "n",
        aliases: &["predict", "n_predict", "num_predict", "max_tokens"],
        show: |options| limit(options.max_tokens),
        set: |options, text| values::limit(text).map(|value| options.max_tokens = value),
    },
];

/// Runs `/set`: without arguments shows all values, with a name shows one, with a name and a value changes it. Returns the text to
/// print.
///
/// # Errors
///
/// [`Failure::Usage`], naming the option; nothing has changed then.
pub fn set(options: &mut GenerateOptions, arguments: &str) -> Result<String, Failure> {
    let arguments = arguments.trim();
    if arguments.is_empty() {
        return Ok(SETTINGS.iter().map(|setting| shown(setting, options)).collect::<Vec<_>>().join("\n"));
    }
    let (name, value) = match arguments.split_once(|c: char| c == '=' || c.is_whitespace()) {
        Some((name, value)) => (name, value.trim().trim_start_matches('=').trim()),
        None => (arguments, ""),
    };
    let plain = name.trim_start_matches('-').replace('-', "_").to_lowercase();
    let setting = SETTINGS
        .iter()
        .find(|setting| setting.name == plain || setting.aliases.contains(&plain.as_str()))
        .ok_or_else(|| {
            let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
            Failure::Usage(format!("/set {name}: there is {}", names.join(", ")))
        })?;
    if !value.is_empty() {
        let refused = |reason: String| Failure::Usage(format!("/set {} {value}: {reason}", setting.name));
        let mut changed = options.clone();
        (setting.set)(&mut changed, value).map_err(refused)?;
        changed.validate().map_err(|error| refused(error.to_string()))?;
        *options = changed;
    }
    Ok(shown(setting, options))
}

fn shown(setting: &Setting, options: &GenerateOptions) -> String {
    format!("{} = {}", setting.name, (setting.show)(options))
}

fn limit(limit: Option<usize>) -> String {
    limit.map_or_else(|| "-1".into(), |limit| limit.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use brasa::GenerateOptions;

    use super::{SETTINGS, set};

    #[test]
    fn values_are_shown_changed_and_checked() {
        let mut options = GenerateOptions::default();
        assert_eq!(set(&mut options, "").unwrap().lines().count(), SETTINGS.len());
        for (typed, answer) in [
            ("temp 0.5", "temp = 0.5"),
            ("temp=0", "temp = 0"),
            ("temp = 1", "temp = 1"),
            ("temperature", "temp = 1"),
            ("--top-k=7", "top_k = 7"),
            ("n 12", "n = 12"),
            ("n -1", "n = -1"),
            ("seed 42", "seed = 42"),
            ("repeat_last_n -1", "repeat_last_n = -1"),
        ] {
            assert_eq!(set(&mut options, typed).unwrap(), answer, "{typed}");
        }
        let before = format!("{options:?}");
        for (typed, reason) in [
            ("top_k -4", "/set top_k -4: expected a whole number of 0 or more"),
            ("n 3.7", "/set n 3.7: expected a whole number"),
            ("n -3", "/set n -3: expected"),
            ("temp warm", "/set temp warm: expected a number"),
            ("temp nan", "/set temp nan: expected"),
            ("top_p 1.5", "/set top_p 1.5: expected"),
            ("repeat_last_n -7", "/set repeat_last_n -7: expected"),
            ("seed x", "/set seed x: expected"),
            ("warmth 1", "/set warmth: there is temp, "),
        ] {
            let message = set(&mut options, typed).unwrap_err().to_string();
            assert!(message.starts_with(reason), "{typed}: {message}");
        }
        assert_eq!(format!("{options:?}"), before);
    }
}
