//! Sounds that are read twice: their features and samples are those of sounds in memory, bit for bit, in level memory.

use std::io::Cursor;
use std::ops::ControlFlow;

use brasa_audio::{
    Audio, AudioError, AudioReader, Energies, Limits, LogMel, MelFilters, Recording, SampleFormat, Sound,
};
use brasa_fuzz::{Rng, most_bytes};

use crate::common::{path, wav};

fn log_mel() -> LogMel {
    LogMel::new(MelFilters::slaney(80).unwrap())
}

fn read(sound: Sound) -> Recording {
    Recording::read(sound, &log_mel(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Noise whose loudest part is at three quarters, where no early window hears it.
fn signal(samples: usize) -> Vec<f32> {
    let mut rng = Rng::new(9);
    let loudness = |at: usize| if at * 4 / samples.max(1) == 3 { 0.5 } else { 1e-6 };
    (0..samples).map(|at| ((rng.bits() >> 40) as f32 / 8_388_608.0 - 1.0) * loudness(at)).collect()
}

/// Windows from the beginning to the end, and from a place before the last one.
fn check(recording: &Recording, samples: &[f32], name: &str) {
    let whole = log_mel().features(samples).unwrap();
    let mut windows = recording.features().unwrap();
    assert_eq!((recording.samples(), windows.frames(), windows.bins()), (samples.len(), whole.frames(), 80));
    let frames = whole.frames();
    for start in [0, 0, 1, 700, 2990, frames / 2, frames.saturating_sub(5), frames, 17, usize::MAX] {
        let (found, expected) = (windows.window(start).unwrap(), whole.window(start));
        let differs =
            found.values().iter().zip(expected.values()).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "{name}, window from {start} of {frames}");
    }
    assert_eq!(*recording.energies(), Energies::of(samples), "{name}");
    let mut excerpts = recording.excerpts();
    let end = samples.len();
    for range in [0..end.min(7), end / 3..end / 2, end / 3..end, end / 4..end / 3, end..end] {
        assert_eq!(excerpts.samples(range.clone()).unwrap(), &samples[range.clone()], "{name}, {range:?}");
    }
    assert!(matches!(recording.excerpts().samples(0..end + 1), Err(AudioError::Changed { .. })));
}

#[test]
fn features_are_those_of_the_whole_sound() {
    for length in [0, 159, 160, 1500, 16_000, 16_384, 80_001, 700_123] {
        let samples = signal(length);
        check(&read(Sound::from_samples(samples.clone())), &samples, &format!("{length} samples"));
    }
}

/// A file, the same bytes in memory, and the same bytes from a stream, long enough for a temporary file.
#[test]
fn every_place_gives_the_same() {
    let (limits, samples) = (Limits::default(), signal(2_200_000));
    let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let file = wav(3, 32, 1, 16_000, &data);
    check(&read(Sound::from_bytes(file.clone(), "memory", &limits)), &samples, "memory");
    let stream = AudioReader::from_stream(Cursor::new(file.clone()), "stream", &limits).unwrap();
    check(&read(Sound::from_stream(stream)), &samples, "stream");
    let directory = std::env::temp_dir().join(format!("brasa-recordings-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let place = directory.join("sound.wav");
    std::fs::write(&place, &file).unwrap();
    let recording = read(Sound::open(&place, &limits).unwrap());
    check(&recording, &samples, "file");
    let raw = directory.join("sound.raw");
    std::fs::write(&raw, &data).unwrap();
    let pcm = Sound::open_pcm(&raw, SampleFormat::F32, 16_000, &limits).unwrap();
    check(&read(pcm), &samples, "raw file");

    // A file that has become shorter meanwhile is told.
    std::fs::write(&place, wav(3, 32, 1, 16_000, &data[..4_000_000])).unwrap();
    let error = recording.features().unwrap().window(10_000).unwrap_err();
    assert!(error.to_string().ends_with("sound.wav: has become shorter while it was read"), "{error}");
    std::fs::remove_file(&place).unwrap();
    assert!(matches!(recording.features(), Err(AudioError::Open { .. })));
    assert!(matches!(Sound::open(&place, &limits), Err(AudioError::Open { .. })));
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Containers at another rate are decoded and resampled twice alike.
#[test]
fn coded_files_are_read_twice_alike() {
    for name in ["sweep.mp3", "sweep.flac", "sweep.ogg", "sweep.m4a"] {
        let place = path("files").join(name);
        let samples = Audio::open(&place, &Limits::default()).unwrap().into_samples();
        check(&read(Sound::open(&place, &Limits::default()).unwrap()), &samples, name);
    }
}

#[test]
fn reading_is_told_and_cancelled() {
    let sound = || Sound::from_samples(signal(100_000));
    let mut told = Vec::new();
    let mut going = |heard: brasa_audio::Heard| {
        told.push(heard.done.as_secs_f64() / heard.claimed.unwrap().as_secs_f64());
        ControlFlow::Continue(())
    };
    Recording::read(sound(), &log_mel(), &mut going).unwrap();
    assert!(told.len() > 3 && told.is_sorted() && (told.last().unwrap() - 1.0).abs() < 1e-9, "{told:?}");
    let cancelled = Recording::read(sound(), &log_mel(), &mut |_| ControlFlow::Break(()));
    assert_eq!(cancelled.unwrap_err().to_string(), "samples: reading was cancelled");
    let bad = Recording::read(Sound::from_samples(vec![0.0, f32::NAN]), &log_mel(), &mut |_| {
        ControlFlow::Continue(())
    });
    assert!(matches!(bad, Err(AudioError::NotFinite { index: 1, .. })));
}

/// Memory does not grow with the sound but for the energies: four bytes for 160 samples.
#[test]
fn memory_is_level() {
    let limits = Limits { duration: std::time::Duration::from_hours(24), ..Limits::default() };
    let peak = |minutes: u64| {
        let bytes = std::io::Read::take(std::io::repeat(7), minutes * 60 * 32_000);
        let reader = AudioReader::from_pcm(bytes, SampleFormat::S16, 16_000, "hum", &limits).unwrap();
        most_bytes(|| {
            let recording = read(Sound::from_stream(reader));
            let mut windows = recording.features().unwrap();
            for start in (0..windows.frames()).step_by(3000) {
                windows.window(start).unwrap();
            }
        })
        .1
    };
    let (short, long) = (peak(4), peak(24));
    assert!(long < short + 400_000, "{short} bytes for 4 minutes, {long} for 24");
}
