//! Odd headers of files of plain samples, each with what comes of it: as a file, and as a stream.

use std::io::Cursor;

use brasa_audio::{Audio, AudioReader, Limits};

use crate::common::wav;

/// Samples of every file: 0.5 s.
const SAMPLES: usize = 8000;
/// The warning of a length of 0.
const UNFINISHED: &str = "the header gives the length 0";

/// The outcome of reading a file.
#[derive(Clone, Copy)]
enum Outcome {
    /// All samples.
    Whole,
    /// The file has this many samples.
    First(usize),
    /// The file has this many samples, and a warning has these words.
    Warned(usize, &'static str),
    /// Like `Warned` for a file; a stream has as many samples without a warning.
    FileWarned(usize, &'static str),
    /// An error that has these words.
    Refused(&'static str),
}
use Outcome::{FileWarned, First, Refused, Warned, Whole};

/// Samples that look like nothing else: no zeros, no letters.
fn samples(count: usize) -> Vec<i16> {
    (0..count).map(|at| (at as i16).wrapping_mul(7919) | 0x101).map(|x| x | i16::MIN >> 8).collect()
}

fn little() -> Vec<u8> {
    samples(SAMPLES).into_iter().flat_map(i16::to_le_bytes).collect()
}

fn big() -> Vec<u8> {
    samples(SAMPLES).into_iter().flat_map(i16::to_be_bytes).collect()
}

/// The values that every file gives.
fn expected() -> Vec<f32> {
    samples(SAMPLES).into_iter().map(|x| f32::from(x) / 32_768.0).collect()
}

/// A chunk with its padding.
fn chunk(name: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut chunk = name.to_vec();
    chunk.extend((body.len() as u32).to_le_bytes());
    chunk.extend(body);
    chunk.resize(chunk.len().next_multiple_of(2), 0);
    chunk
}

/// A WAV file of these chunks.
fn riff(name: [u8; 4], riff_bytes: u32, chunks: &[&[u8]]) -> Vec<u8> {
    let mut file = name.to_vec();
    file.extend(riff_bytes.to_le_bytes());
    file.extend(b"WAVE");
    for chunk in chunks {
        file.extend(*chunk);
    }
    file
}

/// `fmt ` of 16 kHz and 16 bits.
fn form() -> Vec<u8> {
    wav(1, 16, 1, 16_000, &[])[12..36].to_vec()
}

/// A chunk of samples that claims so many bytes.
fn data(claimed: u32, bytes: &[u8]) -> Vec<u8> {
    [b"data".as_slice(), &claimed.to_le_bytes(), bytes].concat()
}

/// The usual file whose length is another one.
fn claiming(claimed: u32) -> Vec<u8> {
    riff(*b"RIFF", claimed.wrapping_add(36), &[&form(), &data(claimed, &little())])
}

/// `ds64` with this length of the samples.
fn long(data_bytes: u64) -> Vec<u8> {
    let mut body = [0; 28];
    body[8..16].copy_from_slice(&data_bytes.to_le_bytes());
    chunk(*b"ds64", &body)
}

fn coded(tag: u16, data_bytes: u32, bytes: &[u8]) -> Vec<u8> {
    let mut file = wav(tag, 8, 1, 16_000, bytes);
    file[40..44].copy_from_slice(&data_bytes.to_le_bytes());
    file
}

fn check(cases: &[(&str, Vec<u8>, Outcome)], name: &str) {
    for (case, bytes, outcome) in cases {
        let limits = Limits::default();
        let file = AudioReader::from_bytes(bytes.clone(), name, &limits);
        let stream = AudioReader::from_stream(Cursor::new(bytes.clone()), name, &limits);
        for (place, reader) in [("file", file), ("stream", stream)] {
            let mut read = Vec::new();
            let mut warnings = Vec::new();
            let found = reader.and_then(|mut reader| {
                for chunk in reader.by_ref() {
                    read.extend(chunk?);
                }
                warnings = reader.warnings().to_vec();
                Ok(())
            });
            let at = format!("{case} ({place}): {found:?}, {} samples, {warnings:?}", read.len());
            let (count, warning) = match *outcome {
                Whole => (SAMPLES, None),
                First(count) => (count, None),
                Warned(count, warning) => (count, Some(warning)),
                FileWarned(count, warning) => (count, Some(warning).filter(|_| place == "file")),
                Refused(words) => {
                    let error = found.expect_err(&at).to_string();
                    assert!(error.starts_with(&format!("{name}: ")) && error.contains(words), "{at}");
                    continue;
                }
            };
            assert!(found.is_ok() && read.len() == count, "{at}");
            assert!(count > SAMPLES || read == expected()[..count], "{at}");
            match warning {
                None => assert!(warnings.is_empty(), "{at}"),
                Some(words) => assert!(
                    warnings.len() == 1 && warnings[0].starts_with(name) && warnings[0].contains(words),
                    "{at}"
                ),
            }
        }
    }
}

#[test]
fn lengths_of_wav_files() {
    let bytes = (SAMPLES * 2) as u32;
    let list = chunk(*b"LIST", b"INFOISFT\x06\0\0\0Lavf\0\0");
    let whole = claiming(bytes);
    let cut = |file: &[u8], at: usize| file[..at].to_vec();
    let cases = [
        ("as it should be", whole.clone(), Whole),
        ("length 0", claiming(0), Warned(SAMPLES, UNFINISHED)),
        ("length 0, RIFF 0", riff(*b"RIFF", 0, &[&form(), &data(0, &little())]), Warned(SAMPLES, UNFINISHED)),
        (
            "length 0, nothing behind",
            riff(*b"RIFF", 36, &[&form(), &data(0, &[])]),
            Refused("no sound in it"),
        ),
        (
            "length 0, a list behind",
            riff(*b"RIFF", 36, &[&form(), &data(0, &list)]),
            Refused("no sound in it"),
        ),
        (
            "length 0, then other data",
            riff(*b"RIFF", 0, &[&form(), &data(0, &[]), &data(bytes, &little())]),
            Whole,
        ),
        (
            "length 0, a list, then data",
            riff(*b"RIFF", 0, &[&form(), &data(0, &[]), &list, &data(bytes, &little())]),
            Whole,
        ),
        (
            "length 0, one byte behind",
            riff(*b"RIFF", 36, &[&form(), &data(0, &[9])]),
            Refused("no sound in it"),
        ),
        (
            "length 0, three samples behind",
            riff(*b"RIFF", 36, &[&form(), &data(0, &little()[..6])]),
            Warned(3, UNFINISHED),
        ),
        ("length 2^32 - 1", claiming(u32::MAX), Whole),
        ("length 2^32 - 37", claiming(u32::MAX - 36), Whole),
        ("length 2^31 - 1", claiming(0x7fff_ffff), Whole),
        ("length 0x7ffff000", claiming(0x7fff_f000), Whole),
        ("length 2^31", claiming(0x8000_0000), Whole),
        ("length 0xfffff000", claiming(0xffff_f000), Whole),
        ("its header counted", claiming(bytes + 44), Warned(SAMPLES, "the sound ends 1.375 ms before")),
        ("36 bytes counted", claiming(bytes + 36), Warned(SAMPLES, "ends 1.125 ms")),
        ("8 bytes counted", claiming(bytes + 8), Warned(SAMPLES, "ends 0.250 ms")),
        ("one byte too many", claiming(bytes + 1), Whole),
        ("one sample too many", claiming(bytes + 2), Warned(SAMPLES, "ends 0.062 ms")),
        ("a buffer too many", claiming(bytes + 1024), Warned(SAMPLES, "ends 32.000 ms")),
        (
            "an eighth too many",
            claiming(bytes + 2000),
            Refused("cut off at 0.50 s, the header claims 0.56 s"),
        ),
        ("twice as many", claiming(bytes * 2), Refused("cut off at 0.50 s, the header claims 1.00 s")),
        ("an hour", claiming(115_200_000), Refused("cut off at 0.50 s, the header claims 3600.00 s")),
        ("the header alone", cut(&whole, 44), Refused("cut off at 0.00 s, the header claims 0.50 s")),
        ("half of it", cut(&whole, 44 + SAMPLES), Refused("cut off at 0.25 s, the header claims 0.50 s")),
        ("without the last byte", cut(&whole, whole.len() - 1), Warned(SAMPLES - 1, "ends 0.062 ms")),
        ("half a header", cut(&whole, 30), Refused("not recognised as audio")),
        ("half as many", claiming(bytes / 2), FileWarned(SAMPLES / 2, "8000 bytes behind the sound (0.25 s")),
        ("a few less", claiming(bytes - 100), First(SAMPLES - 50)),
        ("a list behind", riff(*b"RIFF", 0, &[&form(), &data(bytes, &little()), &list]), Whole),
        (
            "a long list behind",
            riff(*b"RIFF", 0, &[&form(), &data(bytes, &little()), &chunk(*b"LIST", &[7; 9000])]),
            Whole,
        ),
        ("zeros behind", riff(*b"RIFF", 0, &[&form(), &data(bytes, &little()), &[0; 9000]]), Whole),
        (
            "a tag of ID3v1 behind",
            riff(*b"RIFF", 0, &[&form(), &data(bytes, &little()), b"TAG", &[200; 6000]]),
            Whole,
        ),
        ("RIFF 0", riff(*b"RIFF", 0, &[&form(), &data(bytes, &little())]), Whole),
        ("RIFF 2^32 - 1", riff(*b"RIFF", u32::MAX, &[&form(), &data(bytes, &little())]), Whole),
        ("RIFF 4", riff(*b"RIFF", 4, &[&form(), &data(bytes, &little())]), Whole),
    ];
    // With those of the other test at least 60.
    assert!(cases.len() >= 35);
    check(&cases, "x.wav");
}

#[test]
fn chunks_of_wav_files() {
    let bytes = (SAMPLES * 2) as u32;
    let sound = data(bytes, &little());
    let odd = chunk(*b"LIST", b"abc");
    let unpadded = &odd[..odd.len() - 1];
    let mut oldest = form();
    oldest.truncate(22);
    oldest[4] = 14;
    let mut without_bits = form();
    without_bits[22] = 0;
    let mut without_block = form();
    without_block[20] = 0;
    let mut bytes_a_second = form();
    bytes_a_second[16..20].fill(0xff);
    let mut rifx =
        b"RIFX\0\0\0\0WAVEfmt \0\0\0\x10\0\x01\0\x01\0\0\x3e\x80\0\0\x7d\0\0\x02\0\x10data".to_vec();
    let rifx_start = rifx.len();
    rifx.extend(bytes.to_be_bytes());
    rifx.extend(big());
    let mut rifx_unfinished = rifx.clone();
    rifx_unfinished[rifx_start..rifx_start + 4].fill(0);
    let rf64 = |name, long_bytes, short_bytes| {
        riff(name, u32::MAX, &[&long(long_bytes), &form(), &data(short_bytes, &little())])
    };
    let (law, all) = (vec![0xc5; SAMPLES + 1], SAMPLES + 1);
    let mut adpcm = std::fs::read(crate::common::path("files/sweep_adpcm.wav")).unwrap();
    let place = adpcm.windows(4).position(|name| name == b"data").unwrap() + 4;
    adpcm[place..place + 4].fill(0);
    let cases = [
        (
            "JUNK of AVAudioFile",
            riff(
                *b"RIFF",
                0,
                &[&chunk(*b"JUNK", &[0; 28]), &form(), &chunk(*b"FLLR", &[0; 4044]), &data(0, &little())],
            ),
            Warned(SAMPLES, UNFINISHED),
        ),
        ("an odd list in front", riff(*b"RIFF", 0, &[&odd, &form(), &sound]), Whole),
        ("an odd list without padding", riff(*b"RIFF", 0, &[unpadded, &form(), &sound]), Whole),
        ("an odd list between", riff(*b"RIFF", 0, &[&form(), &odd, &sound]), Whole),
        ("an odd list between, without padding", riff(*b"RIFF", 0, &[&form(), unpadded, &sound]), Whole),
        ("an empty list", riff(*b"RIFF", 0, &[&form(), &chunk(*b"LIST", &[]), &sound]), Whole),
        (
            "a list that never ends",
            riff(*b"RIFF", 0, &[&form(), b"LIST\xff\xff\xff\xff", &sound]),
            Refused("x.wav: "),
        ),
        ("no form", riff(*b"RIFF", 0, &[&sound]), Refused("not recognised as audio")),
        ("the oldest form", riff(*b"RIFF", 0, &[&oldest, &sound]), Whole),
        ("no bits", riff(*b"RIFF", 0, &[&without_bits, &sound]), Whole),
        ("no block", riff(*b"RIFF", 0, &[&without_block, &sound]), Whole),
        ("absurd bytes a second", riff(*b"RIFF", 0, &[&bytes_a_second, &sound]), Whole),
        ("two forms", riff(*b"RIFF", 0, &[&form(), &form(), &sound]), Whole),
        ("RIFX", rifx, Whole),
        ("RIFX of length 0", rifx_unfinished, Warned(SAMPLES, UNFINISHED)),
        ("RF64", rf64(*b"RF64", bytes.into(), u32::MAX), Whole),
        ("BW64", rf64(*b"BW64", bytes.into(), u32::MAX), Whole),
        ("RF64 with 0 in data", rf64(*b"RF64", bytes.into(), 0), Whole),
        ("RF64 of length 0", rf64(*b"RF64", 0, u32::MAX), Warned(SAMPLES, UNFINISHED)),
        ("RF64 of length 2^64 - 1", rf64(*b"RF64", u64::MAX, u32::MAX), Whole),
        (
            "RF64 of length 2^63",
            rf64(*b"RF64", 1 << 63, u32::MAX),
            Refused("cut off at 0.50 s, the header claims 288230376151711.75 s"),
        ),
        (
            "RF64, 36 bytes too many",
            rf64(*b"RF64", u64::from(bytes) + 36, u32::MAX),
            Warned(SAMPLES, "ends 1.125 ms"),
        ),
        ("RF64 without ds64", riff(*b"RF64", u32::MAX, &[&form(), &data(u32::MAX, &little())]), Whole),
        (
            "RIFF with ds64 as JUNK",
            riff(*b"RIFF", u32::MAX, &[&chunk(*b"JUNK", &[0; 28]), &form(), &sound]),
            Whole,
        ),
        ("µ-law", coded(7, all as u32, &law), First(all)),
        ("µ-law of length 0", coded(7, 0, &law), Warned(all, UNFINISHED)),
        ("A-law of length 0", coded(6, 0, &law), Warned(all, UNFINISHED)),
        ("ADPCM of length 0", adpcm, Warned(16_288, UNFINISHED)),
    ];
    assert!(cases.len() >= 25);
    check(&cases, "x.wav");
}

#[test]
fn lengths_of_other_files() {
    let bytes = (SAMPLES * 2) as u32;
    let aiff = |name: &[u8; 4], frames: u32, sound_bytes: u32, code: &[u8], data: &[u8]| {
        let mut file = [b"FORM\0\0\0\0", name.as_slice(), b"COMM"].concat();
        file.extend((18 + code.len() as u32).to_be_bytes());
        file.extend([0, 1]);
        file.extend(frames.to_be_bytes());
        // 16,000 is 1.953125 · 2^13.
        file.extend([0, 16, 0x40, 0x0c, 0xfa, 0, 0, 0, 0, 0, 0, 0]);
        file.extend(code);
        file.extend(b"SSND");
        file.extend(sound_bytes.to_be_bytes());
        file.extend([0; 8]);
        file.extend(data);
        file
    };
    let plain = |frames, sound_bytes| aiff(b"AIFF", frames, sound_bytes, &[], &big());
    let frames = SAMPLES as u32;
    let name = [&big()[..], b"NAME\0\0\0\x02hi"].concat();
    let cases = [
        ("AIFF", plain(frames, bytes + 8), Whole),
        ("AIFF, no lengths", plain(0, 0), Warned(SAMPLES, UNFINISHED)),
        ("AIFF, an empty sound", plain(0, 8), Warned(SAMPLES, UNFINISHED)),
        ("AIFF, frames alone", plain(frames, 0), Whole),
        ("AIFF, open", plain(0, u32::MAX), Whole),
        ("AIFF, 44 bytes too many", plain(frames, bytes + 52), Warned(SAMPLES, "ends 1.375 ms")),
        ("AIFF, twice as many", plain(frames, bytes * 2 + 8), Refused("cut off at 0.50 s")),
        ("AIFF, a name behind", aiff(b"AIFF", frames, bytes + 8, &[], &name), Whole),
        ("AIFF, empty", aiff(b"AIFF", 0, 8, &[], b"NAME\0\0\0\x02hi"), Refused("no sound in it")),
        ("AIFF-C", aiff(b"AIFC", frames, bytes + 8, b"NONE\0\0", &big()), Whole),
        ("AIFF-C, turned around", aiff(b"AIFC", frames, 0, b"sowt\0\0", &little()), Whole),
    ];
    check(&cases, "x.aiff");

    let au = |offset: u32, length: u32, encoding: u32, data: &[u8]| {
        let words = [offset, length, encoding, 16_000, 1].map(u32::to_be_bytes);
        [b".snd", words.as_flattened(), &[0; 8], data].concat()
    };
    let cases = [
        ("AU", au(32, bytes, 3, &big()), Whole),
        ("AU, open", au(32, u32::MAX, 3, &big()), Whole),
        ("AU of length 0", au(32, 0, 3, &big()), Warned(SAMPLES, UNFINISHED)),
        ("AU, empty", au(32, 0, 3, &[]), Refused("no sound in it")),
        ("AU, too long", au(32, bytes + 32, 3, &big()), Warned(SAMPLES, "ends 1.000 ms")),
        ("AU, µ-law", au(32, 100, 1, &[0xc5; 100]), First(100)),
        ("AU, a code", au(32, bytes, 23, &big()), Refused("encoding 23 of the AU file is not supported")),
        ("AU, no offset", au(0, bytes, 3, &big()), Refused("x.au: ")),
    ];
    check(&cases[..5], "x.au");
    check(&cases[6..], "x.au");
    let law = AudioReader::from_bytes(cases[5].1.clone(), "x.au", &Limits::default()).unwrap();
    assert_eq!(Audio::from_reader(law).unwrap().samples().len(), 100);

    let caf = |length: i64, flags: u32, data: &[u8]| {
        let mut file = b"caff\0\x01\0\0desc\0\0\0\0\0\0\0\x20".to_vec();
        file.extend(16_000_f64.to_be_bytes());
        file.extend(b"lpcm");
        file.extend([flags, 2, 1, 1, 16].map(u32::to_be_bytes).as_flattened());
        file.extend(b"data");
        file.extend(length.to_be_bytes());
        file.extend([0; 4]);
        file.extend(data);
        file
    };
    let all = i64::from(bytes) + 4;
    let cases = [
        ("CAF", caf(all, 0, &big()), Whole),
        ("CAF, turned around", caf(all, 2, &little()), Whole),
        ("CAF, open", caf(-1, 2, &little()), Whole),
        ("CAF of length 0", caf(0, 2, &little()), Warned(SAMPLES, UNFINISHED)),
        ("CAF, empty", caf(4, 2, &[]), Refused("no sound in it")),
        ("CAF, too long", caf(all + 68, 2, &little()), Warned(SAMPLES, "ends 2.125 ms")),
        ("CAF, twice as long", caf(all * 2, 2, &little()), Refused("cut off at 0.50 s")),
    ];
    check(&cases, "x.caf");
}

/// Logarithms of 8 bits, by the tables of G.711: the largest, the smallest, and a few between.
#[test]
fn logarithms_are_g711s() {
    let read = |tag, bytes: &[u8]| {
        let reader =
            AudioReader::from_bytes(coded(tag, bytes.len() as u32, bytes), "x.wav", &Limits::default());
        let samples = Audio::from_reader(reader.unwrap()).unwrap().into_samples();
        samples.into_iter().map(|sample| sample * 32_768.0).collect::<Vec<_>>()
    };
    let mu = read(7, &[0x00, 0x80, 0xff, 0x7f, 0xfe, 0x40]);
    assert_eq!(mu, [-32_124.0, 32_124.0, 0.0, 0.0, 8.0, -1884.0]);
    let a = read(6, &[0x2a, 0xaa, 0xd5, 0x55, 0x80]);
    assert_eq!(a, [-32_256.0, 32_256.0, 8.0, -8.0, 5504.0]);
}
