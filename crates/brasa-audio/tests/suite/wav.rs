//! WAV files of every kind of sample.

use std::io::Cursor;

use brasa_audio::{Audio, AudioError, AudioReader, Limits};

use crate::common::{distance, sweep, wav};

fn read(bytes: &[u8]) -> Result<Vec<f32>, AudioError> {
    let reader = AudioReader::from_bytes(bytes.to_vec(), "x.wav", &Limits::default())?;
    Audio::from_reader(reader).map(Audio::into_samples)
}

/// The sweep at 16 kHz in samples of this kind.
fn data(tag: u16, bits: u16) -> Vec<u8> {
    let encode = |x: f32| match (tag, bits) {
        (1, 8) => vec![(x * 127.0 + 128.0).round() as u8],
        (1, 16) => ((x * 32_767.0).round() as i16).to_le_bytes().to_vec(),
        (1, 24) => ((x * 8_388_607.0).round() as i32).to_le_bytes()[..3].to_vec(),
        (1, 32) => ((f64::from(x) * 2_147_483_647.0).round() as i32).to_le_bytes().to_vec(),
        (3, 32) => x.to_le_bytes().to_vec(),
        (3, 64) => f64::from(x).to_le_bytes().to_vec(),
        _ => unreachable!("{tag}, {bits}"),
    };
    sweep(16_000).into_iter().flat_map(encode).collect()
}

#[test]
fn every_kind_of_sample_is_read() {
    for (tag, bits, bound) in
        [(1, 8, 0.02), (1, 16, 1e-4), (1, 24, 1e-6), (1, 32, 1e-6), (3, 32, 0.0), (3, 64, 0.0)]
    {
        let file = wav(tag, bits, 1, 16_000, &data(tag, bits));
        let found = read(&file).unwrap();
        let distance = distance(&found, &sweep(16_000));
        assert!(found.len() == 16_000 && distance <= bound, "tag {tag}, {bits} bits: {distance}");

        // The same with an extensible header, behind a chunk of odd length.
        let mut extensible = file[..12].to_vec();
        extensible.extend(b"LIST\x03\0\0\0abc\0fmt \x28\0\0\0\xfe\xff");
        extensible.extend(&file[22..36]);
        extensible.extend([22, 0, bits as u8, 0, 4, 0, 0, 0, tag as u8, 0]);
        extensible.extend(b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71");
        extensible.extend(&file[36..]);
        assert_eq!(read(&extensible).unwrap(), found, "tag {tag}, {bits} bits");
    }
}

#[test]
fn channels_are_averaged() {
    let samples: Vec<u8> =
        [16_384_i16, 0, 8192, 0, -16_384, -8192].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(read(&wav(1, 16, 2, 16_000, &samples)).unwrap(), [0.25, 0.125, -0.375]);
    assert_eq!(read(&wav(1, 16, 3, 16_000, &samples)).unwrap().len(), 2);
}

#[test]
fn a_header_without_a_length_means_until_the_end() {
    // ffmpeg writes so into a pipe, and sox, and RF64 has the length elsewhere.
    for length in [u32::MAX, 0x7fff_f000] {
        let mut file = wav(1, 16, 1, 16_000, &[0, 64, 0, 64, 0]);
        file[40..44].copy_from_slice(&length.to_le_bytes());
        assert_eq!(read(&file).unwrap(), [0.5, 0.5]);
        let stream = AudioReader::from_stream(Cursor::new(file), "-", &Limits::default()).unwrap();
        assert_eq!(stream.claimed_duration(), None);
        assert_eq!(Audio::from_reader(stream).unwrap().samples(), [0.5, 0.5]);
    }
    let mut long = b"RF64\xff\xff\xff\xffWAVEds64\x10\0\0\0".to_vec();
    long.extend([0; 8]);
    long.extend(2_u64.to_le_bytes());
    long.extend(&wav(1, 16, 1, 16_000, &[0, 64, 0, 64])[12..40]);
    long.extend([255, 255, 255, 255, 0, 64, 0, 64]);
    assert_eq!(read(&long).unwrap(), [0.5]);
}
