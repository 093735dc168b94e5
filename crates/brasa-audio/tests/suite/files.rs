//! One second of sound was encoded in every format; each file gives it back.

use std::fs::File;
use std::io::Write;

use brasa_audio::{Audio, AudioError, AudioReader, Limits, SampleFormat};

use crate::common::{distance, path, sweep};

/// File, its samples at 16 kHz, and how far they may be from the signal. AAC fills quiet bands with noise.
const FILES: [(&str, usize, f64); 11] = [
    ("sweep.aac", 16_347, 0.12),
    ("sweep.aiff", 16_000, 1e-4),
    ("sweep.caf", 16_000, 1e-4),
    ("sweep.flac", 16_000, 1e-4),
    ("sweep.m4a", 16_347, 0.12),
    ("sweep.mkv", 16_184, 0.06),
    ("sweep.mp3", 16_000, 0.06),
    ("sweep.ogg", 16_000, 0.06),
    ("sweep_adpcm.wav", 16_288, 0.13),
    ("sweep_alac.m4a", 16_000, 1e-4),
    ("sweep_stereo_vbr.mp3", 16_000, 0.1),
];

fn open(name: &str) -> Result<Vec<f32>, AudioError> {
    Audio::open(path("files").join(name), &Limits::default()).map(Audio::into_samples)
}

#[test]
fn every_format_has_the_same_sound() {
    for (name, samples, bound) in FILES {
        let found = open(name).unwrap();
        assert_eq!(found.len(), samples, "{name}");
        let distance = distance(&found, &sweep(16_000));
        assert!(distance < bound, "{name}: {distance}");
    }
}

/// Speech in all three modes of Opus, in OGG and in WebM, is what libopus 1.5 makes of it. (Of a loud pure tone the speech modes of decoders
/// make different things, libopus's and FFmpeg's too.)
#[test]
fn opus_is_what_libopus_makes_of_it() {
    let expected = open("speech_libopus.flac").unwrap();
    let found = open("speech.opus").unwrap();
    assert_eq!(found.len(), expected.len());
    assert!(distance(&found, &expected) < 1e-3, "{}", distance(&found, &expected));
    // WebM does not say where the last packet's sound ends.
    let webm = open("speech.webm").unwrap();
    assert!((0..=320).contains(&(webm.len() - expected.len())), "{}", webm.len());
    assert!(distance(&webm[..expected.len() - 320], &expected) < 1e-3);
    for name in ["speech.opus", "speech.webm"] {
        let stream = Audio::read(File::open(path("files").join(name)).unwrap(), name, &Limits::default());
        assert!(stream.unwrap().samples().len().abs_diff(expected.len()) < 1000, "{name}");
    }
}

#[test]
fn a_stream_and_memory_give_the_samples_of_the_file() {
    for (name, ..) in FILES {
        let expected = open(name).unwrap();
        let bytes = std::fs::read(path("files").join(name)).unwrap();
        // Without its extension.
        let memory = AudioReader::from_bytes(bytes.clone(), "upload", &Limits::default()).unwrap();
        assert_eq!(Audio::from_reader(memory).unwrap().samples(), expected, "{name}");
        match Audio::read(File::open(path("files").join(name)).unwrap(), name, &Limits::default()) {
            Ok(streamed) => assert!(streamed.samples().len().abs_diff(expected.len()) < 1000, "{name}"),
            // The index comes last, or a length is missing.
            Err(error) => assert!(name.ends_with("m4a") || name.ends_with("caf"), "{name}: {error}"),
        }
    }
}

#[test]
fn a_reader_tells_how_far_it_is() {
    let mut reader = AudioReader::open(&path("files/sweep.flac"), &Limits::default()).unwrap();
    assert_eq!((reader.sample_rate(), reader.claimed_duration().unwrap().as_millis()), (16_000, 1000));
    let first = reader.next().unwrap().unwrap();
    assert_eq!(reader.duration_read().as_millis(), first.len() as u128 / 16);
    let rest: usize = reader.by_ref().map(|chunk| chunk.unwrap().len()).sum();
    assert_eq!((first.len() + rest, reader.duration_read().as_millis()), (16_000, 1000));
    assert!(reader.next().is_none());
}

#[test]
fn places_without_sound_are_named() {
    assert!(open("there_is_none.wav").unwrap_err().to_string().contains("there_is_none.wav: "));
    let folder = Audio::open(path("files"), &Limits::default()).unwrap_err().to_string();
    assert!(folder.contains("files: a folder, expected a file of sound"), "{folder}");
    let junk = AudioReader::from_bytes(*b"no sound at all, but a text", "x.wav", &Limits::default());
    let junk = junk.unwrap_err().to_string();
    assert!(
        junk.starts_with("x.wav: not recognised as audio: its bytes are in no format of sound"),
        "{junk}"
    );
}

#[test]
fn raw_samples_come_as_they_are_ready() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut live =
        AudioReader::from_pcm(reader, SampleFormat::S16, 16_000, "microphone", &Limits::default()).unwrap();
    // Three bytes are a sample and a half.
    writer.write_all(&[0, 64, 0]).unwrap();
    assert_eq!(live.next().unwrap().unwrap(), [0.5]);
    writer.write_all(&[192]).unwrap();
    assert_eq!(live.next().unwrap().unwrap(), [-0.5]);
    writer.write_all(&[1]).unwrap();
    drop(writer);
    assert!(live.next().is_none());

    let bytes: Vec<u8> = sweep(48_000).iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let floats = std::io::Cursor::new(bytes);
    let reader =
        AudioReader::from_pcm(floats, SampleFormat::F32, 48_000, "floats", &Limits::default()).unwrap();
    assert!(distance(Audio::from_reader(reader).unwrap().samples(), &sweep(16_000)) < 1e-3);
}
