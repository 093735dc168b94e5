//! Which layers have a window.

use serde_json::Value;

use crate::Result;
use crate::keys::{Key, LAYER_TYPES, WINDOW, WINDOW_PATTERN};
use crate::metadata::{Metadata, limits};
use crate::rope_config::LayerKind;

/// The window that a key configures; `None` without one. Zero, which GGUF files write, means none.
pub(super) fn window(meta: &Metadata, default: Option<usize>) -> Result<Option<usize>> {
    if !meta.mentions(WINDOW) {
        return default.map(|window| meta.or_assumed(WINDOW, None, window)).transpose();
    }
    Ok(Some(meta.count_or_zero(WINDOW, limits::POSITIONS)?).filter(|&window| window > 0))
}

/// The kind of every layer: from a list, from a pattern (every *n*-th layer has no window), or from `otherwise`.
pub(crate) fn kinds(
    meta: &Metadata,
    layers: usize,
    otherwise: impl Fn(usize) -> LayerKind,
) -> Result<Vec<LayerKind>> {
    let expected = format!("full_attention or sliding_attention for each of {layers} layers, or a period");
    let pattern = meta.value(WINDOW_PATTERN);
    match meta.value(LAYER_TYPES) {
        Some((name, value)) => match value {
            Value::Array(all) if all.len() == layers => all
                .iter()
                .map(|kind| match kind {
                    Value::Bool(true) => Some(LayerKind::Sliding),
                    Value::Bool(false) => Some(LayerKind::Full),
                    kind if kind == "sliding_attention" => Some(LayerKind::Sliding),
                    kind if kind == "full_attention" => Some(LayerKind::Full),
                    _ => None,
                })
                .collect::<Option<_>>()
                .ok_or_else(|| meta.bad_value(name, value, &expected)),
            Value::Number(_) => by_pattern(meta, LAYER_TYPES, layers),
            _ => Err(meta.bad_value(name, value, &expected)),
        },
        None if pattern.is_some() => by_pattern(meta, WINDOW_PATTERN, layers),
        None => Ok((0..layers).map(otherwise).collect()),
    }
}

fn by_pattern(meta: &Metadata, key: Key, layers: usize) -> Result<Vec<LayerKind>> {
    let period = meta.require(key, limits::LAYERS)?;
    Ok((0..layers).map(every(period)).collect())
}

/// A function that gives every `period`-th layer no window.
pub(super) fn every(period: usize) -> impl Fn(usize) -> LayerKind {
    move |layer| {
        if (layer + 1).is_multiple_of(period) { LayerKind::Full } else { LayerKind::Sliding }
    }
}
