//! The walk from window to window: cuts a window's tokens into segments, and finds the start of the next window (openai-whisper's
//! `transcribe`).

use std::ops::Range;

use brasa_audio::WINDOW_FRAMES;
use brasa_audio::transcript::Segment;

use crate::tokens::TIMESTAMP_S;
use crate::vocabulary::SpeechVocabulary;
use crate::window::{Criteria, WindowText};
use crate::{Result, TranscribeOptions};

/// Frames of sound for each second.
const FRAMES_PER_S: f64 = 100.0;
/// Frames from one timestamp to the next.
const TIMESTAMP_FRAMES: usize = 2;
/// The temperature above which a window's text is not used as context of the next window.
const WILD: f32 = 0.5;

/// The next window to transcribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First frame of 10 ms.
    pub seek: usize,
    /// Frames of sound, at most 3,000.
    pub frames: usize,
}

/// A window's segments, and how to go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Segments in order; none if the window is silent.
    pub segments: Vec<Segment>,
    /// First frame of the next window.
    pub next_seek: usize,
    /// True if the window's text ends with a single timestamp, which means that no speech follows it.
    pub ends_alone: bool,
}

/// Goes through a sound of known length, window by window.
#[derive(Clone, Debug)]
pub struct Seeker {
    content_frames: usize,
    /// Parts of the sound that have not been transcribed, in frames; the last part comes first.
    clips: Vec<Range<usize>>,
    seek: usize,
    /// Tokens of all segments, and of the initial prompt in front of them.
    tokens: Vec<u32>,
    /// Tokens of the initial prompt.
    initial: usize,
    /// Number of first tokens that are not used as context any more.
    context_from: usize,
    carries_initial: bool,
    conditions: bool,
    /// Most tokens of context.
    most_context: usize,
    criteria: Criteria,
}

impl Seeker {
    /// Before the first window of `content_frames` frames of sound.
    ///
    /// # Errors
    ///
    /// Errors of the tokenizer about the initial prompt.
    pub fn new(
        content_frames: usize,
        vocabulary: &SpeechVocabulary,
        options: &TranscribeOptions,
        text_context: usize,
    ) -> Result<Self> {
        // An empty prompt is none, as in whisper.cpp: a space by itself would change what is heard.
        let tokens = match options.initial_prompt.as_deref().map(str::trim) {
            Some("") | None => Vec::new(),
            Some(prompt) => vocabulary.encode(&format!(" {prompt}"))?,
        };
        let whole = 0..content_frames;
        Ok(Self {
            content_frames,
            clips: vec![whole],
            seek: 0,
            initial: tokens.len(),
            tokens,
            context_from: 0,
            carries_initial: options.carry_initial_prompt,
            conditions: options.condition_on_previous_text,
            most_context: (text_context / 2).saturating_sub(1),
            criteria: Criteria::of(options),
        })
    }

    /// Keeps only these ranges of frames, which are in order. No window spans two of them (openai-whisper's `clip_timestamps`).
    /// Call it before the first window.
    pub fn keep_only(&mut self, clips: &[Range<usize>]) {
        let inside = |clip: &Range<usize>| clip.start..clip.end.min(self.content_frames);
        self.clips = clips.iter().map(inside).filter(|clip| !clip.is_empty()).rev().collect();
        self.seek = self.clips.last().map_or(self.content_frames, |clip| clip.start);
    }

    /// The window to transcribe; `None` at the end.
    pub fn window(&self) -> Option<Window> {
        let left = self.clips.last()?.end.checked_sub(self.seek).filter(|&left| left > 0)?;
        Some(Window { seek: self.seek, frames: left.min(WINDOW_FRAMES) })
    }

    /// Tokens of the text before the window.
    pub fn context(&self) -> Vec<u32> {
        if !self.carries_initial || self.initial == 0 {
            return self.tokens[self.context_from..].to_vec();
        }
        let from = self.initial.max(self.context_from);
        let room = self.most_context.saturating_sub(self.initial);
        let recent = &self.tokens[from..];
        let recent = &recent[recent.len() - recent.len().min(room)..];
        [&self.tokens[..self.initial], recent].concat()
    }

    /// Number of frames that were processed.
    pub fn frames_done(&self) -> usize {
        self.seek.min(self.content_frames)
    }

    /// Makes segments of the text of `window`.
    ///
    /// # Errors
    ///
    /// Errors of the tokenizer.
    pub fn cut(&self, window: Window, text: &WindowText, vocabulary: &SpeechVocabulary) -> Result<Cut> {
        let all = window.seek + window.frames;
        if self.criteria.is_silent(text) {
            return Ok(Cut { segments: Vec::new(), next_seek: all, ends_alone: false });
        }
        let offset_s = window.seek as f64 / FRAMES_PER_S;
        let begin = vocabulary.tokens().timestamp_begin;
        let tokens = &text.tokens;
        let is_timestamp = |token: u32| token >= begin;
        let segment = |start_s: f64, end_s: f64, part: Range<usize>| -> Result<Segment> {
            let tokens = &text.tokens[part.clone()];
            Ok(Segment {
                seek: window.seek as u32,
                start_s,
                end_s,
                text: vocabulary.decode(tokens)?,
                tokens: tokens.to_vec(),
                logprobs: text.logprobs.get(part).unwrap_or_default().to_vec(),
                temperature: f64::from(text.temperature),
                avg_logprob: text.avg_logprob,
                compression_ratio: text.compression_ratio,
                no_speech_prob: text.no_speech_prob,
                words: None,
            })
        };
        let ends_alone =
            matches!(tokens[..], [.., before, last] if !is_timestamp(before) && is_timestamp(last));
        // Two timestamps one after the other close one segment and open the next.
        let pair = |&place: &usize| is_timestamp(tokens[place - 1]) && is_timestamp(tokens[place]);
        let mut ends: Vec<usize> = (1..tokens.len()).filter(pair).collect();
        let mut segments = Vec::new();
        let mut next_seek = all;
        if ends.is_empty() {
            let mut duration_s = window.frames as f64 / FRAMES_PER_S;
            let last = tokens.iter().rev().find(|&&token| is_timestamp(token));
            if let Some(&last) = last.filter(|&&last| last != begin) {
                duration_s = f64::from(last - begin) * TIMESTAMP_S;
            }
            segments.push(segment(offset_s, offset_s + duration_s, 0..tokens.len())?);
        } else {
            if ends_alone {
                ends.push(tokens.len());
            }
            let mut from = 0;
            for &end in &ends {
                let part = &tokens[from..end];
                let time = |token: Option<&u32>| {
                    let steps = token.map_or(0, |&token| token.saturating_sub(begin));
                    offset_s + f64::from(steps) * TIMESTAMP_S
                };
                segments.push(segment(time(part.first()), time(part.last()), from..end)?);
                from = end;
            }
            if !ends_alone {
                let steps = tokens[from - 1].saturating_sub(begin) as usize;
                next_seek = window.seek + steps * TIMESTAMP_FRAMES;
            }
        }
        Ok(Cut { segments, next_seek, ends_alone })
    }

    /// Continues after a window. The times in `cut` may have been adjusted before. Segments without length or text are emptied,
    /// as in openai-whisper, and not returned.
    pub fn follow(&mut self, window: Window, cut: Cut, text: &WindowText) -> Vec<Segment> {
        // A window that does not lead on would be transcribed for ever.
        self.seek = if cut.next_seek > window.seek { cut.next_seek } else { window.seek + window.frames };
        if self.clips.last().is_some_and(|clip| self.seek >= clip.end) {
            self.clips.pop();
            self.seek = self.clips.last().map_or(self.content_frames, |clip| clip.start);
        }
        let silent = cut.segments.is_empty();
        let spoken = |segment: &Segment| {
            (segment.end_s - segment.start_s).abs() > 0.0 && !segment.text.trim().is_empty()
        };
        let segments: Vec<Segment> = cut.segments.into_iter().filter(spoken).collect();
        for segment in &segments {
            self.tokens.extend_from_slice(&segment.tokens);
        }
        if !silent && (!self.conditions || text.temperature > WILD) {
            self.context_from = self.tokens.len();
        }
        segments
    }
}
