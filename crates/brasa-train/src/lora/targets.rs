//! The choice of layers that are adapted.

use regex::Regex;

use super::Layer;
use crate::{Result, TrainError};

/// Layers that are adapted: those that one of the patterns names, in one of the last blocks.
#[derive(Clone, Debug)]
pub struct Targets {
    /// Patterns; none for every layer within a block but experts.
    pub patterns: Vec<Pattern>,
    /// How many of the last blocks; `None` for all.
    pub last_blocks: Option<usize>,
}

/// Names of layers.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// A name, or its end behind a dot: `q_proj`, `attn_q`, `layers.3.attn_q`.
    Name(String),
    /// An expression that matches some part of a name.
    Regex(Regex),
    /// Every layer within a block but experts.
    All,
    /// Every stack of experts.
    Experts,
}

/// Every linear layer within the blocks.
impl Default for Targets {
    fn default() -> Self {
        Self { patterns: Vec::new(), last_blocks: None }
    }
}

impl Targets {
    /// Reads names and `/expressions/` that are separated by commas; `all` is every linear layer within the blocks but experts, `experts` are those.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] for an expression that is none.
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
    /// [`TrainError::Setting`] if a pattern names no layer, or nothing is left.
    pub fn choose<'a>(&self, layers: &'a [Layer]) -> Result<Vec<&'a Layer>> {
        let blocks = layers.iter().filter_map(Layer::block).max().map_or(0, |last| last + 1);
        let first = blocks.saturating_sub(self.last_blocks.unwrap_or(blocks));
        if let Some(wanted) = self.last_blocks.filter(|wanted| *wanted == 0 || *wanted > blocks) {
            let what = format!("the last {wanted} blocks, the model has {blocks}");
            return Err(TrainError::setting(what, "name a number of blocks from 1"));
        }
        for pattern in &self.patterns {
            if !layers.iter().any(|layer| pattern.names(layer)) {
                let names: Vec<&str> = ends(layers);
                let hint = format!(
                    "the layers are {}; names and /expressions/ are separated by commas",
                    names.join(", ")
                );
                return Err(TrainError::setting(format!("no linear layer is named {pattern}"), hint));
            }
        }
        let is_target = |layer: &&Layer| {
            let inside = layer.block().is_some_and(|block| block >= first);
            let outside = layer.block().is_none() && self.last_blocks.is_none();
            let named = self.patterns.iter().any(|pattern| pattern.names(layer));
            if self.patterns.is_empty() {
                inside && Pattern::All.names(layer)
            } else {
                (inside || outside) && named
            }
        };
        let chosen: Vec<&Layer> = layers.iter().filter(is_target).collect();
        if chosen.is_empty() {
            return Err(TrainError::setting("no layer is adapted", "choose other targets, or more blocks"));
        }
        Ok(chosen)
    }
}

impl Pattern {
    /// Reads a name or an `/expression/`.
    ///
    /// # Errors
    ///
    /// [`TrainError::Setting`] for an expression that is none.
    pub fn parse(text: &str) -> Result<Self> {
        match text.strip_prefix('/').and_then(|inner| inner.strip_suffix('/')) {
            Some(inner) => Regex::new(inner).map(Self::Regex).map_err(|error| {
                let what = format!("/{inner}/: {error}");
                TrainError::setting(what, "write an expression as in Rust's crate regex")
            }),
            None => Ok(Self::Name(text.into())),
        }
    }

    /// True if a name of the layer is meant.
    pub(super) fn names(&self, layer: &Layer) -> bool {
        match self {
            Self::All => return layer.block().is_some() && layer.experts.is_none(),
            Self::Experts => return layer.experts.is_some(),
            Self::Name(_) | Self::Regex(_) => {}
        }
        layer.names().any(|name| match self {
            Self::Name(end) => {
                name.strip_suffix(end.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            Self::Regex(regex) => regex.is_match(name),
            Self::All | Self::Experts => false,
        })
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

/// The last parts of the layers' names, each once.
fn ends(layers: &[Layer]) -> Vec<&str> {
    let mut ends: Vec<&str> = Vec::new();
    for end in
        layers.iter().flat_map(|layer| layer.names().map(|name| name.rsplit('.').next().unwrap_or(name)))
    {
        if !ends.contains(&end) {
            ends.push(end);
        }
    }
    ends
}
