//! The choice of layers that are adapted.

use regex::Regex;

use super::Layer;
use crate::{Result, TrainError};

/// The layers to adapt: in the last blocks, those with a name that a pattern matches.
#[derive(Clone, Debug)]
pub struct Targets {
    /// Patterns of names; empty for every layer within a block except experts.
    pub patterns: Vec<Pattern>,
    /// Number of last blocks whose layers are targets; `None` for all blocks.
    pub last_blocks: Option<usize>,
}

/// A pattern of layer names.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// A layer's name, or the end of a name after a dot: `q_proj`, `attn_q`, `layers.3.attn_q`.
    Name(String),
    /// A regular expression that matches some part of a name.
    Regex(Regex),
    /// Every layer within a block except experts.
    All,
    /// Every stack of experts.
    Experts,
}

/// A possible target with all of its names.
pub(crate) struct Named<'a> {
    pub names: Vec<&'a str>,
    /// The number of the target's block; `None` outside the blocks.
    pub block: Option<usize>,
    pub kind: Kind,
}

/// Class of a layer for the patterns `all` and `experts`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A single linear layer.
    Linear,
    /// A stack of experts.
    Experts,
    /// A parameter that is learned only if a pattern names it.
    Other,
}

/// Every linear layer within the blocks.
impl Default for Targets {
    fn default() -> Self {
        Self { patterns: Vec::new(), last_blocks: None }
    }
}

impl Targets {
    /// Reads names and `/expressions/` that are separated by commas; `all` means every linear layer within the blocks except
    /// experts, `experts` every stack of experts.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] for an invalid expression.
    pub fn parse(text: &str, last_blocks: Option<usize>) -> Result<Self> {
        let mut patterns = Vec::new();
        // An expression may hold commas.
        let whole = text.strip_prefix('/').and_then(|inner| inner.strip_suffix('/'));
        let parts: Vec<&str> = match whole {
            Some(inner) if !inner.contains("/,/") => vec![text],
            _ => text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect(),
        };
        for part in parts {
            patterns.push(match part {
                "all" => Pattern::All,
                "experts" => Pattern::Experts,
                _ => Pattern::parse(part)?,
            });
        }
        Ok(Self { patterns, last_blocks })
    }

    /// The layers of `layers` that are targets, in order.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] if a pattern names no layer, or if there are no targets.
    pub fn choose<'a>(&self, layers: &'a [Layer]) -> Result<Vec<&'a Layer>> {
        let named: Vec<Named<'_>> = layers.iter().map(Named::of).collect();
        let chosen = self.choose_among(&named, "linear layer")?;
        Ok(chosen.into_iter().map(|number| &layers[number]).collect())
    }

    /// Numbers of the targets in `all`. `what` is the word for a target in errors.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] if a pattern names no target, or if there are none.
    pub(crate) fn choose_among(&self, all: &[Named<'_>], what: &str) -> Result<Vec<usize>> {
        let blocks = all.iter().filter_map(|named| named.block).max().map_or(0, |last| last + 1);
        let first = blocks.saturating_sub(self.last_blocks.unwrap_or(blocks));
        if let Some(wanted) = self.last_blocks.filter(|wanted| *wanted == 0 || *wanted > blocks) {
            let what = format!("the last {wanted} blocks, the model has {blocks}");
            return Err(TrainError::setting(what, "name a number of blocks from 1"));
        }
        for pattern in &self.patterns {
            if !all.iter().any(|named| pattern.is_of(named)) {
                let hint = format!(
                    "the {what}s are {}; names and /expressions/ are separated by commas",
                    ends(all).join(", ")
                );
                return Err(TrainError::setting(format!("no {what} is named {pattern}"), hint));
            }
        }
        let is_target = |named: &Named<'_>| {
            let inside = named.block.is_some_and(|block| block >= first);
            let outside = named.block.is_none() && self.last_blocks.is_none();
            if self.patterns.is_empty() {
                inside && Pattern::All.is_of(named)
            } else {
                (inside || outside) && self.patterns.iter().any(|pattern| pattern.is_of(named))
            }
        };
        let chosen: Vec<usize> = (0..all.len()).filter(|&number| is_target(&all[number])).collect();
        if chosen.is_empty() {
            let hint = "choose other targets, or more blocks";
            return Err(TrainError::setting(format!("no {what} is learned"), hint));
        }
        Ok(chosen)
    }
}

impl Pattern {
    /// Reads a name or an `/expression/`.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] for an invalid expression.
    pub fn parse(text: &str) -> Result<Self> {
        match text.strip_prefix('/').and_then(|inner| inner.strip_suffix('/')) {
            Some(inner) => Regex::new(inner).map(Self::Regex).map_err(|error| {
                let what = format!("/{inner}/: {error}");
                TrainError::setting(what, "write an expression as in Rust's crate regex")
            }),
            None => Ok(Self::Name(text.into())),
        }
    }

    /// True if the pattern matches a name of the layer.
    pub(super) fn names(&self, layer: &Layer) -> bool {
        self.is_of(&Named::of(layer))
    }

    /// True if the pattern matches `named`.
    fn is_of(&self, named: &Named<'_>) -> bool {
        let mut names = named.names.iter();
        match self {
            Self::All => named.block.is_some() && named.kind == Kind::Linear,
            Self::Experts => named.kind == Kind::Experts,
            Self::Name(end) => names.any(|name| {
                name.strip_suffix(end.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }),
            Self::Regex(regex) => names.any(|name| regex.is_match(name)),
        }
    }
}

impl<'a> Named<'a> {
    fn of(layer: &'a Layer) -> Self {
        let kind = if layer.experts.is_some() { Kind::Experts } else { Kind::Linear };
        Self { names: layer.names().collect(), block: layer.block(), kind }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => write!(out, "`{name}`"),
            Self::Regex(regex) => write!(out, "/{regex}/"),
            Self::All => out.write_str("`all`"),
            Self::Experts => out.write_str("`experts`"),
        }
    }
}

/// The last parts of the names, each once, for messages. For `….weight` and `….bias`, the last two parts.
fn ends<'a>(all: &[Named<'a>]) -> Vec<&'a str> {
    let mut ends: Vec<&str> = Vec::new();
    for &name in all.iter().flat_map(|named| &named.names) {
        let is_kind = |part: &&str| matches!(*part, "weight" | "bias");
        let kind_bytes = name.rsplit('.').next().filter(is_kind).map_or(0, |kind| kind.len() + 1);
        let stem = &name[..name.len() - kind_bytes.min(name.len())];
        let end = &name[stem.rfind('.').map_or(0, |dot| dot + 1)..];
        if !ends.contains(&end) && !end.ends_with(".weight") {
            ends.push(end);
        }
    }
    ends
}
