//! Files that lie, break off or make no sense: errors that say what is wrong, in bounded time and memory.

use std::time::Duration;

use brasa_audio::{AudioError, AudioReader, Limits};
use brasa_fuzz::{Fuzzer, Rng};

use crate::common::{path, wav};

/// Reads everything; the number of samples.
fn read(bytes: &[u8], name: &str, limits: &Limits) -> Result<usize, AudioError> {
    let mut samples = 0;
    for chunk in AudioReader::from_bytes(bytes.to_vec(), name, limits)? {
        samples += chunk?.len();
    }
    Ok(samples)
}

fn refusal(bytes: &[u8], name: &str) -> String {
    read(bytes, name, &Limits::default()).unwrap_err().to_string()
}

#[test]
fn headers_that_lie_are_refused() {
    let mut three_hours = wav(1, 16, 1, 16_000, &[0; 10]);
    three_hours[40..44].copy_from_slice(&(3 * 3600 * 32_000_u32).to_le_bytes());
    assert_eq!(
        refusal(&three_hours, "talk.wav"),
        "talk.wav: cut off at 0.00 s, the header claims 10800.00 s\nhint: the file may still be downloading; `ffmpeg -i FILE out.wav` keeps what is there"
    );
    let cases = [
        (wav(1, 16, 1, 16_000, &[]), "x.wav: no sound in it"),
        (wav(1, 16, 200, 16_000, &[0; 400]), "x.wav: 200 channels, expected 1 to 64"),
        (wav(1, 16, 0, 16_000, &[0; 400]), "x.wav: 0 channels, expected 1 to 64"),
        (
            wav(1, 16, 1, 1_000_000_000, &[0; 4]),
            "x.wav: sample rate of 1000000000 Hz, expected 1000 to 768000 Hz",
        ),
        (wav(1, 16, 1, 0, &[0; 4]), "x.wav: sample rate of 0 Hz, expected 1000 to 768000 Hz"),
        (
            wav(3, 32, 1, 16_000, &[0, 0, 0, 0, 0, 0, 192, 127]),
            "x.wav: damaged at 0.00 s: sample 1 is NaN, expected a number within ±1000000000",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(refusal(&bytes, "x.wav"), expected);
    }
    assert!(
        refusal(b"", "x.mp3").starts_with("x.mp3: not recognised as audio: "),
        "{}",
        refusal(b"", "x.mp3")
    );
    assert!(refusal(b"RIFF\xff\xff\xff\xffWAVE", "x.wav").contains("x.wav: "));
}

#[test]
fn the_callers_limits_hold() {
    let second = wav(1, 16, 1, 16_000, &vec![0; 32_000]);
    let limits = Limits { duration: Duration::from_millis(999), ..Limits::default() };
    assert_eq!(
        read(&second, "x.wav", &limits).unwrap_err().to_string(),
        "x.wav: longer than 1.00 s, which is the limit"
    );
    let limits = Limits { channels: 1, sample_rate: 8000, ..Limits::default() };
    assert!(matches!(read(&second, "x.wav", &limits), Err(AudioError::SampleRate { limit_hz: 8000, .. })));
}

#[test]
fn files_that_break_off_anywhere_are_read_or_refused() {
    for name in [
        "sweep.flac",
        "sweep.m4a",
        "sweep.mp3",
        "sweep.ogg",
        "speech.opus",
        "sweep.aiff",
        "sweep.mkv",
        "sweep_alac.m4a",
    ] {
        let bytes = std::fs::read(path("files").join(name)).unwrap();
        for part in 0..24 {
            let end = bytes.len() * part / 24;
            if let Err(error) = read(&bytes[..end], name, &Limits::default()) {
                assert!(error.to_string().starts_with(name), "{end} bytes: {error}");
            }
        }
    }
    // Whoever knows its length says that it is cut off.
    let flac = std::fs::read(path("files/sweep.flac")).unwrap();
    assert!(matches!(read(&flac[..15_000], "x.flac", &Limits::default()), Err(AudioError::CutOff { .. })));
}

#[test]
fn random_bytes_are_no_sound() {
    let mut rng = Rng::new(7);
    for extension in ["wav", "mp3", "flac", "ogg", "m4a", "aac", "mkv", "caf", "aiff", "raw"] {
        for bytes in [10, 1000, 100_000] {
            let bytes: Vec<u8> = (0..bytes).map(|_| rng.bits() as u8).collect();
            let name = format!("x.{extension}");
            if let Err(error) = read(&bytes, &name, &Limits::default()) {
                assert!(error.to_string().starts_with(&name), "{error}");
            }
        }
    }
}

/// A file of this kind with changes; symphonia's decoders are compiled without optimisation here, so there are few runs.
fn fuzz(name: &str, runs: u64) {
    let bytes = std::fs::read(path("files").join(name)).unwrap();
    let limits = Limits { duration: Duration::from_mins(1), ..Limits::default() };
    Fuzzer::new(name).seed(bytes).runs(runs).memory_factor(2000).run(|bytes| {
        match read(bytes, name, &limits) {
            Ok(_) => "read".to_owned(),
            Err(error) => error.to_string(),
        }
    });
}

#[test]
fn a_decoder_that_panics_gave_up() {
    // symphonia multiplies 40,000 channels by two bytes in 16 bits, which overflows in this build, and is refused in others.
    let text = refusal(&wav(1, 16, 40_000, 16_000, &[0; 64])[..36], "x.wav");
    let expected = if cfg!(debug_assertions) { "damaged at 0.00 s: the decoder gave up on it" } else { "" };
    assert!(text.starts_with(&format!("x.wav: {expected}")), "{text}");
}

#[test]
fn fuzz_wav_headers() {
    let limits = Limits { duration: Duration::from_mins(1), ..Limits::default() };
    Fuzzer::new("wav")
        .seed(wav(1, 16, 2, 16_000, &[7; 64]))
        .seed(wav(3, 32, 1, 8000, &[0; 64]))
        .words([b"fmt ", b"data", b"RF64", b"ds64", b"\xfe\xff\x01\0"])
        .runs(5_000)
        .longest_input(1 << 12)
        .run(|bytes| {
            read(bytes, "x.wav", &limits).map_or_else(|error| error.to_string(), |_| "read".to_owned())
        });
}

#[test]
fn fuzz_flac() {
    fuzz("sweep.flac", 100);
}

#[test]
fn fuzz_isomp4() {
    fuzz("sweep.m4a", 100);
    fuzz("sweep_alac.m4a", 100);
}

#[test]
fn fuzz_mp3() {
    fuzz("sweep_stereo_vbr.mp3", 100);
}

#[test]
fn fuzz_ogg() {
    fuzz("sweep.ogg", 100);
}

#[test]
fn fuzz_opus() {
    fuzz("speech.opus", 60);
    fuzz("speech.webm", 40);
}

#[test]
fn fuzz_mkv() {
    fuzz("sweep.mkv", 100);
}

#[test]
fn fuzz_others() {
    fuzz("sweep.aac", 60);
    fuzz("sweep.aiff", 60);
    fuzz("sweep.caf", 60);
    fuzz("sweep_adpcm.wav", 60);
}
