//! `brasa inspect --attention`: the attention weights of heads for a text, as lines, as JSON and as a heat map.

mod map;
mod svg;

use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{LayerInside, LoadOptions, Model, RequestOptions};
use serde_json::{Value, json};

use self::map::Map;
use crate::args::InspectArguments;
use crate::failure::Failure;
use crate::values::Heads;
use crate::{input, interrupt, load, output};

/// Most tokens, and most maps, of one picture. A larger picture would not be readable.
const MOST_TOKENS: usize = 160;
const MOST_MAPS: usize = 64;

/// Number of tokens that a line names.
const NAMED: usize = 3;

/// Shows the attention of `heads` in the text that the arguments give.
pub fn show(arguments: &InspectArguments, heads: &Heads) -> Result<(), Failure> {
    let force = output::Force { given: arguments.force, how: "--force" };
    if let Some(path) = &arguments.svg {
        output::refuse_existing(path, force)?;
    }
    let text = match (&arguments.prompt, &arguments.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => input::text(path)?,
        (None, None) => {
            return Err(Failure::Usage("no text to look into\nhint: give one (-p, --file)".into()));
        }
    };
    let options = LoadOptions { max_sequences: Some(1), ..LoadOptions::default() };
    let model = load::open(&arguments.source, &options)?;
    let ids =
        model.tokenizer().encode(&text, AddSpecial::AsModel, ParseSpecial::No).map_err(brasa::Error::from)?;
    let ends = interrupt::ends_at_once();
    let maps = maps(&model, &ids, heads)?;
    drop(ends);
    let pieces = ids.iter().map(|&id| model.tokenizer().piece(id)).collect::<Result<Vec<_>, _>>();
    let pieces = pieces.map_err(brasa::Error::from)?;
    if let Some(path) = &arguments.svg {
        if ids.len() > MOST_TOKENS || maps.len() > MOST_MAPS {
            return Err(Failure::Failed(format!(
                "a picture of {} and {}: at most {MOST_TOKENS} and {MOST_MAPS} can be seen\nhint: choose heads (--attention LAYER:HEAD), take a shorter text, or --json",
                output::plural(ids.len(), "token"),
                output::plural(maps.len(), "head")
            )));
        }
        let picture = svg::draw(&maps, &pieces);
        output::file(path, force, |out| out.write_all(picture.as_bytes()))?;
    }
    if arguments.json {
        return output::line(&object(&maps, &pieces, &ids).to_string());
    }
    if arguments.svg.is_none() {
        for map in &maps {
            lines(map, &pieces)?;
        }
    }
    Ok(())
}

/// Computes the maps of the chosen heads.
fn maps(model: &Model, ids: &[u32], heads: &Heads) -> Result<Vec<Map>, Failure> {
    let layers: Vec<usize> = match heads {
        Heads::All => Vec::new(),
        Heads::Some(chosen) => chosen.iter().map(|&(layer, _)| layer).collect(),
    };
    let inside = model.look_inside(ids, &layers, &RequestOptions::DEFAULT)?;
    let mut maps = Vec::new();
    for (at, layer) in inside.iter().enumerate() {
        let chosen = match heads {
            Heads::All => None,
            Heads::Some(chosen) => chosen[at].1,
        };
        if let Some(head) = chosen.filter(|&head| head >= layer.heads) {
            return Err(Failure::Failed(format!(
                "layer {} has no head {head}: it has {} heads, which are counted from 0 to {}",
                layer.layer,
                layer.heads,
                layer.heads.saturating_sub(1)
            )));
        }
        maps.extend(chosen.map_or(0..layer.heads, |head| head..head + 1).map(|head| map(layer, head)));
    }
    Ok(maps)
}

fn map(layer: &LayerInside, head: usize) -> Map {
    Map { layer: layer.layer, head, weights: layer.weights(head), entropy: layer.entropy(head) }
}

/// Prints for each token the tokens with the largest weights.
fn lines(map: &Map, pieces: &[String]) -> Result<(), Failure> {
    output::line(&format!("layer {} head {}", map.layer, map.head))?;
    for ((row, entropy), piece) in map.weights.chunks_exact(pieces.len()).zip(&map.entropy).zip(pieces) {
        let mut order: Vec<usize> = (0..row.len()).filter(|&at| row[at] > 0.0).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let named = order.iter().take(NAMED).map(|&at| format!("{:.0} % {:?}", row[at] * 100.0, pieces[at]));
        let named: Vec<String> = named.collect();
        output::line(&format!("{:>16}  entropy {entropy:.2}  {}", format!("{piece:?}"), named.join(", ")))?;
    }
    Ok(())
}

fn object(maps: &[Map], pieces: &[String], ids: &[u32]) -> Value {
    let maps: Vec<Value> = maps
        .iter()
        .map(|map| {
            let rows: Vec<&[f32]> = map.weights.chunks_exact(pieces.len()).collect();
            json!({"layer": map.layer, "head": map.head, "weights": rows, "entropy": map.entropy})
        })
        .collect();
    json!({"ids": ids, "pieces": pieces, "attention": maps})
}
