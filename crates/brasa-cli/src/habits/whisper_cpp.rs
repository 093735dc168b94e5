//! Options of whisper.cpp's `whisper-cli`, and the answer of `brasa transcribe` to each.
//!
//! Taken in November 2026 from the help text of `whisper-cli` (examples/cli). Options that are spelled alike here are left out.

use super::row::Outcome::{Answered, Becomes, Cases, Noted, Ours, True};
use super::row::{Row, flag, maybe, value};

const NO_DIARIZATION: &str = "speakers are not told apart";
const WHOLE_FILE: &str = "files are transcribed whole; `ffmpeg -ss FROM -t LENGTH` cuts a part out";
const VOICE_MODEL: &str = "the model of voice activity is built in: `--vad model`";
const ROOT: &str = "a grammar's text begins with its rule `root`";
const NO_PENALTY: &str = "what a grammar does not allow never comes";

/// Options of whisper-cli.
pub const WHISPER_CPP: &[Row] = &[
    value("-bs", "N", Ours("--beam")),
    value("-bo", "N", Ours("--best-of")),
    flag("-tr", Becomes(&["--translate"])),
    value("-tp", "T", Ours("--temp")),
    value("-tpi", "T", Ours("--temperature-inc")),
    flag("-nf --no-fallback", Becomes(&["--temperature-inc", "0"])),
    value("-nth", "P", Ours("--no-speech-threshold")),
    value("-lpt", "X", Ours("--logprob-threshold")),
    value(
        "-et --entropy-thold",
        "X",
        Answered("texts that go round in circles are told by `--compression-ratio-threshold`"),
    ),
    flag("-otxt --output-txt", Becomes(&["--format", "text"])),
    flag("-osrt --output-srt", Becomes(&["--format", "srt"])),
    flag("-ovtt --output-vtt", Becomes(&["--format", "vtt"])),
    flag("-ocsv --output-csv", Becomes(&["--format", "csv"])),
    flag("-olrc --output-lrc", Becomes(&["--format", "lrc"])),
    flag("-oj --output-json", Becomes(&["--format", "verbose_json"])),
    flag("-ojf --output-json-full", Becomes(&["--format", "verbose_json", "--words"])),
    value(
        "-of --output-file",
        "FILE",
        Answered("`--out` names a folder; one transcript goes to standard output"),
    ),
    value(
        "-p --processors",
        "N",
        Answered("a file is transcribed in its order; `--threads` sets the threads"),
    ),
    flag("-nt --no-timestamps", True("times are shown with `--timestamps` alone")),
    flag("-np --no-prints", True("standard output has nothing but the transcript")),
    flag("-pp --print-progress", True("a terminal has a progress bar")),
    flag("-ng --no-gpu", Becomes(&["--device", "cpu"])),
    flag("-dl --detect-language", Answered("`--verbose` tells the language with the transcript")),
    flag("-di --diarize -tdrz --tinydiarize", Answered(NO_DIARIZATION)),
    value("-ot --offset-t -on --offset-n -d --duration", "N", Answered(WHOLE_FILE)),
    value(
        "-ml --max-len",
        "N",
        Answered("segments end where the model ends them; `--words` has a line for each word"),
    ),
    value(
        "-mc --max-context",
        "N",
        Answered("`--no-context` shows the model no text, otherwise it sees half its context"),
    ),
    value("-ac --audio-ctx", "N", Answered("windows are as long as the model was trained for")),
    maybe(
        "--vad",
        &["model", "energy", "off"],
        Cases(&[(&["model", ""], Becomes(&["--vad", "model"]))], &Ours("--vad")),
    ),
    value("-vm --vad-model", "FILE", Answered(VOICE_MODEL)),
    value("--grammar", "GRAMMAR", Ours("--grammar")),
    value("--grammar-rule", "NAME", Answered(ROOT)),
    value("--grammar-penalty", "N", Noted(NO_PENALTY)),
    value("-dtw --dtw", "MODEL", Noted("`--words` finds times of words by the model's own heads")),
];
