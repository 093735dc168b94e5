//! Attention as heat maps in SVG, written without a library.

use std::fmt::Write;

use super::map::Map;
use crate::xml;

const CELL: f64 = 13.0;
const MARGIN: f64 = 16.0;
const TITLE: f64 = 26.0;
/// Most characters of a token that are shown.
const SHOWN: usize = 12;
/// Width of a token's name, in pixels.
const NAME: f64 = 96.0;
/// Number of maps in a row.
const COLUMNS: usize = 4;

/// Draws maps side by side, with a row for each token and a column for each token that it attends to. A cell's weight appears when
/// the pointer rests on it.
pub fn draw(maps: &[Map], pieces: &[String]) -> String {
    let side = pieces.len() as f64 * CELL;
    let (width, height) = (NAME + side + MARGIN, TITLE + NAME + side + MARGIN);
    let columns = maps.len().clamp(1, COLUMNS);
    let rows = maps.len().div_ceil(columns);
    let mut svg = format!(
        concat!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" ",
            "font-family=\"system-ui, sans-serif\" font-size=\"10\">\n",
            "<rect width=\"{w:.0}\" height=\"{h:.0}\" fill=\"#ffffff\"/>\n"
        ),
        w = MARGIN + width * columns as f64,
        h = MARGIN + height * rows as f64
    );
    for (number, map) in maps.iter().enumerate() {
        let x = MARGIN + width * (number % columns) as f64;
        let y = MARGIN + height * (number / columns) as f64;
        panel(&mut svg, map, pieces, x, y);
    }
    svg += "</svg>\n";
    svg
}

fn panel(svg: &mut String, map: &Map, pieces: &[String], x: f64, y: f64) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<g transform=\"translate({x:.1} {y:.1})\"><text y=\"14\" font-size=\"13\" font-weight=\"bold\">layer {} head {}</text>",
        map.layer, map.head
    );
    let (left, top) = (NAME, TITLE + NAME);
    for (at, piece) in pieces.iter().enumerate() {
        let name = name(piece);
        let middle = (at as f64 + 0.75) * CELL;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            left - 4.0,
            top + middle
        );
        let _ = writeln!(
            svg,
            "<text transform=\"translate({:.1} {:.1}) rotate(-90)\">{name}</text>",
            left + middle,
            top - 4.0
        );
    }
    for (i, row) in map.weights.chunks_exact(pieces.len()).enumerate() {
        for (j, &weight) in row.iter().enumerate().take(i + 1) {
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"{}\"><title>{} looks at {}: {weight:.3}</title></rect>",
                left + j as f64 * CELL,
                top + i as f64 * CELL,
                colour(weight),
                name(&pieces[i]),
                name(&pieces[j])
            );
        }
    }
    svg.push_str("</g>\n");
}

/// The colour of a weight, from white over orange to dark red. It follows the weight's square root, so that small weights are
/// visible.
fn colour(weight: f32) -> String {
    const STOPS: [[f32; 3]; 3] = [[255.0, 250.0, 244.0], [232.0, 128.0, 64.0], [92.0, 16.0, 16.0]];
    let at = weight.clamp(0.0, 1.0).sqrt() * 2.0;
    let (low, share) = if at < 1.0 { (0, at) } else { (1, at - 1.0) };
    let channel = |c: usize| (STOPS[low][c] + (STOPS[low + 1][c] - STOPS[low][c]) * share) as u8;
    format!("#{:02x}{:02x}{:02x}", channel(0), channel(1), channel(2))
}

/// A token's text for XML, with control characters as escapes.
fn name(piece: &str) -> String {
    let visible: String = piece.escape_debug().collect();
    let short: String = visible.replace("\\\"", "\"").replace("\\'", "'").chars().take(SHOWN).collect();
    let short = short.strip_prefix(' ').map(|rest| format!("·{rest}")).unwrap_or(short);
    xml::escaped(&short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_for_every_pair_that_may_look() {
        let map = Map { layer: 2, head: 1, weights: vec![1.0, 0.0, 0.25, 0.75], entropy: vec![0.0, 0.5] };
        let svg = draw(&[map], &["<a&b>".into(), " new\nline".into()]);
        // One rectangle is the background.
        assert_eq!(svg.matches("<rect").count(), 1 + 3);
        assert!(
            svg.contains("layer 2 head 1") && svg.contains("&lt;a&amp;b&gt;") && svg.contains("·new\\nline")
        );
        assert!(svg.contains("·new\\nline looks at &lt;a&amp;b&gt;: 0.250"), "{svg}");
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert_eq!((colour(0.0), colour(1.0)), ("#fffaf4".to_owned(), "#5c1010".to_owned()));
    }
}
