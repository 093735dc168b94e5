//! Values of options as people write them, parsed and checked. Flags and the chat's `/set` share these functions.

use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::num::NonZeroU64;
use std::path::Path;

use brasa::AdapterSource;
use brasa::ProbeKind;
use brasa::audio::transcript::TranscriptFormat;
use brasa::audio::{SampleFormat, VoiceDetector};
use brasa::sampling::{SamplingOrder, SamplingParams};
use brasa::speech::language_code;
use brasa::train::optimizer::{Adafactor, MlxSchedule};
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::templates;

/// A number of tokens; `None` for no limit.
pub type Limit = Option<usize>;
/// A random seed; `None` for a new one each time.
pub type Seed = Option<u64>;
/// The code of a language; `None` to detect it.
pub type Language = Option<&'static str>;

/// A choice of attention heads: all, or the named ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heads {
    /// Every head of every layer.
    All,
    /// Layers, each with one head or (`None`) all of its heads.
    Some(Vec<(usize, Option<usize>)>),
}

/// Reads `all`, or a list of `LAYER` and `LAYER:HEAD`.
pub fn heads(text: &str) -> Result<Heads, String> {
    if text == "all" {
        return Ok(Heads::All);
    }
    let one = |item: &str| match item.split_once(':') {
        Some((layer, head)) => Ok((count(layer)?, Some(count(head)?))),
        None => Ok((count(item)?, None)),
    };
    text.split(',').map(one).collect::<Result<_, String>>().map(Heads::Some)
}

/// Parses `FILE` or `FILE=SCALE`. If a file with the whole name exists, all of the text is its name.
pub fn adapter(text: &str) -> Result<AdapterSource, String> {
    let split = text.rsplit_once('=').filter(|_| !Path::new(text).exists());
    match split {
        None => Ok(AdapterSource::new(text)),
        Some((path, scale)) => match scale.parse::<f32>() {
            Ok(scale) if scale.is_finite() && !path.is_empty() => {
                Ok(AdapterSource { path: path.into(), scale })
            }
            _ => Err(format!("\"{scale}\" is no scale, expected a number")),
        },
    }
}

/// Reads two numbers from 0 to less than 1, separated by a comma.
pub fn betas(text: &str) -> Result<(f64, f64), String> {
    let one = |text: &str| text.trim().parse::<f64>().ok().filter(|beta| (0.0..1.0).contains(beta));
    let both = text.split_once(',').and_then(|(first, second)| Some((one(first)?, one(second)?)));
    both.ok_or_else(|| format!("\"{text}\" is no pair of numbers from 0 to less than 1, such as 0.9,0.999"))
}

/// Parses a size in bytes: a number, with KB, MB, GB or TB (powers of 1000, as transformers counts) or KiB to TiB (of 1024) behind
/// it.
pub fn size(text: &str) -> Result<NonZeroU64, String> {
    const UNITS: [(&str, u64); 8] = [
        ("KIB", 1 << 10),
        ("MIB", 1 << 20),
        ("GIB", 1 << 30),
        ("TIB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];
    let upper = text.to_ascii_uppercase();
    let bytes = match UNITS.iter().find_map(|(unit, bytes)| Some((upper.strip_suffix(unit)?, *bytes))) {
        Some((number, unit)) => {
            let is_plain = |digit: u8| digit.is_ascii_digit() || digit == b'.';
            let number = Some(number.trim()).filter(|number| number.bytes().all(is_plain));
            let bytes =
                number.and_then(|number| number.parse::<f64>().ok()).map(|number| number * unit as f64);
            bytes.filter(|&bytes| bytes < u64::MAX as f64).map(|bytes| bytes as u64)
        }
        None => Some(&*upper)
            .filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()))
            .and_then(|text| text.parse().ok()),
    };
    bytes
        .and_then(NonZeroU64::new)
        .ok_or_else(|| "expected bytes, at least 1: 5GB, 500MB, 1.5GiB or 5000000".into())
}

/// Reads MLX-LM's schedule of the learning rate, as JSON.
pub fn lr_schedule(text: &str) -> Result<MlxSchedule, String> {
    let value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    MlxSchedule::parse(&value).map_err(|error| error.to_string())
}

/// Reads settings of `mlx.optimizers.Adafactor`, as JSON.
pub fn adafactor(text: &str) -> Result<Adafactor, String> {
    let value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    Adafactor::parse(&value).map_err(|error| error.to_string())
}

/// Reads `NAME=RANK`.
pub fn own_rank(text: &str) -> Result<(String, usize), String> {
    let (name, rank) = named(text)?;
    Ok((name, positive(rank)?))
}

/// Reads `NAME=ALPHA`.
pub fn own_alpha(text: &str) -> Result<(String, f32), String> {
    let (name, alpha) = named(text)?;
    match alpha.parse::<f32>() {
        Ok(alpha) if alpha.is_finite() && alpha > 0.0 => Ok((name, alpha)),
        _ => Err(format!("\"{alpha}\" is no number above 0")),
    }
}

/// The name and the value of `NAME=VALUE`. A name may hold equals signs.
fn named(text: &str) -> Result<(String, &str), String> {
    match text.rsplit_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value)),
        _ => Err("expected NAME=NUMBER".into()),
    }
}

/// Reads a number of at least 1.
pub fn positive(text: &str) -> Result<usize, String> {
    match count(text)? {
        0 => Err("must be at least 1".into()),
        number => Ok(number),
    }
}

/// Reads a size of a measurement, of at most a million: more tokens than any model's context, or a terabyte in MiB.
pub fn measured(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 20;
    count(text).and_then(
        |number| {
            if number > MOST { Err(format!("expected at most {MOST}")) } else { Ok(number) }
        },
    )
}

/// Parses a number of tokens to generate, at least 2, because the first token does not measure decoding.
pub fn several(text: &str) -> Result<usize, String> {
    match measured(text)? {
        0 | 1 => Err("must be at least 2".into()),
        number => Ok(number),
    }
}

/// Reads a kind of probe.
pub fn probe() -> impl TypedValueParser<Value = ProbeKind> {
    PossibleValuesParser::new(ProbeKind::ALL.map(ProbeKind::name)).try_map(|name| name.parse())
}

/// Reads a number of at least 0.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number of 0 or more".into())
}

/// Reads a number of tokens, or -1 for no limit.
pub fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "-1" => Ok(None),
        text => text.parse().map(Some).map_err(|_| "expected a whole number of 0 or more, or -1".into()),
    }
}

/// Reads a seed, or -1 for a new one each time.
pub fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(None),
        text => text.parse().map(Some).map_err(|_| "expected a whole number of 0 or more, or -1".into()),
    }
}

/// Reads a temperature.
pub fn temperature(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.temperature = value)
}

/// Reads how many tokens top-k keeps; 0 for all, as -1 is elsewhere.
pub fn top_k(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(0),
        text => text.parse().map_err(|_| "expected a whole number of 0 or more, or -1".into()),
    }
}

/// Reads the share of top-p.
pub fn top_p(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.top_p = value)
}

/// Reads the share of min-p.
pub fn min_p(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.min_p = value)
}

/// Reads the probability of typical-p.
pub fn typical_p(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.typical_p = value)
}

/// Reads the number of standard deviations of top-n-sigma. Numbers below 0 become 0, which keeps all tokens, as in
/// llama.cpp.
pub fn top_n_sigma(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.top_n_sigma = value.max(0.0)).map(|value| value.max(0.0))
}

/// Reads the probability of XTC.
pub fn xtc_probability(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.xtc_probability = value)
}

/// Reads the threshold of XTC.
pub fn xtc_threshold(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.xtc_threshold = value)
}

/// Reads the range of a dynamic temperature.
pub fn dynatemp_range(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.dynatemp_range = value)
}

/// Reads the exponent of a dynamic temperature.
pub fn dynatemp_exponent(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.dynatemp_exponent = value)
}

/// Reads the multiplier of DRY.
pub fn dry_multiplier(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.dry.multiplier = value)
}

/// Reads the base of DRY.
pub fn dry_base(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.dry.base = value)
}

/// Reads the text of a sequence breaker of DRY, with llama.cpp's escapes such as `\n`.
pub fn breaker(text: &str) -> Result<String, String> {
    match String::from_utf8(crate::input::unescape(text.as_bytes())) {
        Ok(text) if !text.is_empty() => Ok(text),
        _ => Err("expected a text, or `none`".into()),
    }
}

/// `number` as JSON, with the decimal digits that the user typed: 0.1 and not 0.10000000149.
pub fn as_typed(number: f32) -> serde_json::Value {
    number.to_string().parse::<f64>().map_or(serde_json::Value::Null, serde_json::Value::from)
}

/// Reads names of samplers with `;` or `,` between them.
pub fn samplers(text: &str) -> Result<SamplingOrder, String> {
    let names = text.split([';', ',']).map(str::trim).filter(|name| !name.is_empty());
    SamplingOrder::from_names(names).map_err(|error| error.to_string())
}

/// Reads the factor of the repeat penalty.
pub fn repeat_penalty(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.repeat_penalty = value)
}

/// Reads a penalty that is subtracted.
pub fn penalty(text: &str) -> Result<f32, String> {
    checked(text, |sampling, value| sampling.frequency_penalty = value)
}

/// Reads a bias of one token: `15043+1`, `15043-0.5` or `15043-inf`.
pub fn bias(text: &str) -> Result<(u32, f32), String> {
    let parse = || {
        let sign = text.find(['+', '-'])?;
        let bias = text[sign..].parse::<f32>().ok().filter(|bias| !bias.is_nan() && *bias < f32::INFINITY)?;
        Some((text[..sign].parse().ok()?, bias))
    };
    parse().ok_or_else(|| "expected ID+BIAS or ID-BIAS, e.g. 15043+1".into())
}

/// Parses a language: its code, its English name, or `auto` for detection.
pub fn language(text: &str) -> Result<Language, String> {
    if text.is_empty() || text.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    language_code(text).map(Some).ok_or_else(|| "expected a code or an English name: en, german, auto".into())
}

/// Reads the form of a transcript.
pub fn transcript_format() -> impl TypedValueParser<Value = TranscriptFormat> {
    PossibleValuesParser::new(TranscriptFormat::ALL.map(|(name, _)| name)).try_map(|name| name.parse())
}

/// Parses the kind of voice detector.
pub fn voice() -> impl TypedValueParser<Value = VoiceDetector> {
    PossibleValuesParser::new(["model", "energy", "off"])
        .try_map(|name| VoiceDetector::named(&name).ok_or("no such way"))
}

/// Parses a sample format, by Brasa's names and by those of ALSA and `FFmpeg`.
pub fn sample_format(text: &str) -> Result<SampleFormat, String> {
    match text.to_ascii_lowercase().as_str() {
        "u8" => Ok(SampleFormat::U8),
        "s16" | "s16_le" | "s16le" => Ok(SampleFormat::S16),
        // ALSA's S24_LE has a fourth byte.
        "s24" | "s24_3le" | "s24le" => Ok(SampleFormat::S24),
        "s32" | "s32_le" | "s32le" => Ok(SampleFormat::S32),
        "f32" | "float_le" | "f32le" => Ok(SampleFormat::F32),
        "f64" | "float64_le" | "f64le" => Ok(SampleFormat::F64),
        _ => Err("expected u8, s16, s24, s32, f32 or f64".into()),
    }
}

/// Parses the seconds of sound between two updates of a live transcription.
pub fn step(text: &str) -> Result<f32, String> {
    let seconds = finite(text)?;
    if (0.1..=10.0).contains(&seconds) { Ok(seconds) } else { Err("expected 0.1 to 10 seconds".into()) }
}

/// Reads a number of pieces of sound that are transcribed at once.
pub fn batch(text: &str) -> Result<usize, String> {
    match count(text)? {
        number @ 1..=64 => Ok(number),
        _ => Err("expected 1 to 64".into()),
    }
}

/// Reads a number that is not infinite.
pub fn finite(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|value: &f32| value.is_finite()).ok_or_else(|| "expected a number".into())
}

/// Reads a JSON object.
pub fn object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object: {error}"))
}

/// Reads a chat template, by its name or in Jinja.
pub fn chat_template(text: &str) -> Result<String, String> {
    match templates::source(text) {
        Some(source) => Ok(source.into()),
        None if text.contains('{') => Ok(text.into()),
        None => Err(format!("expected a text in Jinja, or one of {}", templates::names())),
    }
}

/// Reads the path below which a server serves: `/llm`, without a slash at its end.
pub fn prefix(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    if text.is_empty() || text.starts_with('/') {
        Ok(text.into())
    } else {
        Err("expected a path such as /llm".into())
    }
}

/// Reads seconds, or -1 for never.
pub fn interval(text: &str) -> Result<Option<u64>, String> {
    match text {
        "-1" => Ok(None),
        text => match text.parse() {
            Ok(seconds @ 1..=86_400) => Ok(Some(seconds)),
            _ => Err("expected 1 to 86400 seconds, or -1 for never".into()),
        },
    }
}

/// Parses an address, or looks up the addresses of a host name.
pub fn host(text: &str) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(vec![address]);
    }
    if std::path::Path::new(text).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("sock"))
    {
        return Err("sockets of Unix are not served; a proxy may listen there".into());
    }
    let found = (text, 0).to_socket_addrs().map_err(|error| format!("no address of this name: {error}"))?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found.map(|found| found.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    // A name such as localhost may have an address of a kind that this machine does not speak.
    if addresses.iter().any(can_listen) {
        addresses.retain(can_listen);
    }
    // The older kind first: the line that tells the address shows it.
    addresses.sort_by_key(IpAddr::is_ipv6);
    if addresses.is_empty() { Err("no address of this name".into()) } else { Ok(addresses) }
}

/// True if this machine has the address.
fn can_listen(address: &IpAddr) -> bool {
    TcpListener::bind((*address, 0)).is_ok()
}

/// Reads a text that may end an answer.
pub fn stop(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("an empty text would end every answer at once".into()) } else { Ok(text.into()) }
}

/// The text of an option; `None` if it is empty, since scripts may write `--grammar "$GRAMMAR"` with an empty variable.
pub fn given(text: Option<&String>) -> Option<String> {
    text.filter(|text| !text.trim().is_empty()).cloned()
}

/// Parses a number and checks it by the sampler's rules.
fn checked(text: &str, set: impl Fn(&mut SamplingParams, f32)) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| "expected a number".to_owned())?;
    let mut sampling = SamplingParams::default();
    set(&mut sampling, value);
    match sampling.validate() {
        Ok(()) => Ok(value),
        Err(error) => {
            let message = error.to_string();
            Err(message.find("expected").map_or(message.clone(), |at| message[at..].to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use brasa::audio::SampleFormat;

    use super::{bias, count, limit, min_p, positive, repeat_penalty, seed, stop, temperature, top_p};
    use super::{language, sample_format, size, step};

    #[test]
    fn what_makes_sense_is_read() {
        assert_eq!(positive("7"), Ok(7));
        assert_eq!(count("0"), Ok(0));
        assert_eq!(limit("-1"), Ok(None));
        assert_eq!(limit("0"), Ok(Some(0)));
        assert_eq!(seed("-1"), Ok(None));
        assert_eq!(seed("18446744073709551615"), Ok(Some(u64::MAX)));
        assert_eq!(temperature("0"), Ok(0.0));
        assert_eq!(top_p("1"), Ok(1.0));
        assert_eq!(bias("15043-inf"), Ok((15043, f32::NEG_INFINITY)));
        assert_eq!(
            (language("auto"), language("German"), language("yue")),
            (Ok(None), Ok(Some("de")), Ok(Some("yue")))
        );
        for (name, bytes) in [("S16_LE", 2), ("s24_3le", 3), ("FLOAT_LE", 4), ("f64", 8), ("u8", 1)] {
            assert_eq!(sample_format(name).map(SampleFormat::bytes), Ok(bytes), "{name}");
        }
        assert_eq!(step("0.5"), Ok(0.5));
        for (text, bytes) in [
            ("5GB", 5_000_000_000),
            ("1.5 mb", 1_500_000),
            ("2KiB", 2_048),
            ("0.001KB", 1),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size(text).map(u64::from), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_makes_none_is_refused() {
        for text in ["-4", "3.7", "", "x", "1e3", "99999999999999999999", " 1"] {
            assert!(count(text).is_err() && positive(text).is_err(), "{text:?}");
            assert!(limit(text).is_err() && seed(text).is_err(), "{text:?}");
        }
        assert!(positive("0").is_err());
        for text in ["-1", "nan", "inf", "x", ""] {
            assert!(temperature(text).is_err() && top_p(text).is_err(), "{text:?}");
            assert!(min_p(text).is_err() && repeat_penalty(text).is_err(), "{text:?}");
        }
        assert_eq!(top_p("1.5"), Err("expected 0 (the likeliest token) to 1 (off)".into()));
        for text in ["7", "7+", "+1", "7+nan", "7+inf", "-7+1"] {
            assert!(bias(text).is_err(), "{text:?}");
        }
        assert!(stop("").is_err());
        for text in [
            "0",
            "0GB",
            "-1",
            "-5GB",
            "1e3MB",
            "GB",
            "",
            "large",
            "5G",
            "5 bytes",
            "infGB",
            "0.1KiB5",
            "99999999999TB",
        ] {
            assert!(size(text).is_err(), "{text:?}");
        }
        for text in ["klingon", "0", "nan", "inf", "S24_LE", "s16be"] {
            assert!(
                language(text).is_err() && sample_format(text).is_err() && step(text).is_err(),
                "{text:?}"
            );
        }
    }
}
