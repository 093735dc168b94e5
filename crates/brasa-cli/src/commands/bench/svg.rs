//! Profiles as a bar chart in SVG, written without a library.

use std::fmt::Write;

use super::cost::{Cost, Profile};
use crate::xml;

/// Number of kinds of operations that are shown singly; the rest is summed.
const BARS: usize = 14;
const WIDTH: f64 = 960.0;
const LABEL_WIDTH: f64 = 300.0;
const BAR_WIDTH: f64 = 370.0;
const ROW_HEIGHT: f64 = 24.0;
const TITLE_HEIGHT: f64 = 46.0;
const MARGIN: f64 = 16.0;

/// Draws a panel for each profile, with a bar for each kind of operation. `read_ceiling` is in bytes a second, if it was measured.
pub fn chart(profiles: &[Profile], read_ceiling: Option<f64>) -> String {
    let panels: Vec<(&Profile, Vec<Cost>)> =
        profiles.iter().map(|profile| (profile, shown(profile.kinds()))).collect();
    let rows: usize = panels.iter().map(|(_, bars)| bars.len()).sum();
    let height = 2.0 * MARGIN + panels.len() as f64 * (TITLE_HEIGHT + MARGIN) + rows as f64 * ROW_HEIGHT;
    let mut svg = format!(
        concat!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" ",
            "font-family=\"system-ui, sans-serif\" font-size=\"13\">\n",
            "<rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n"
        ),
        w = WIDTH,
        h = height
    );
    let mut y = MARGIN;
    for (profile, bars) in &panels {
        panel(&mut svg, profile, bars, read_ceiling, &mut y);
    }
    svg += "</svg>\n";
    svg
}

/// The first kinds, and the sum of all other kinds.
fn shown(mut kinds: Vec<Cost>) -> Vec<Cost> {
    if kinds.len() > BARS {
        let rest = kinds.split_off(BARS - 1);
        let mut other = Cost { label: format!("{} others", rest.len()), ..rest[0].clone() };
        for cost in &rest[1..] {
            other.count += cost.count;
            other.time += cost.time;
            other.bytes += cost.bytes;
            other.operations += cost.operations;
        }
        kinds.push(other);
    }
    kinds
}

fn panel(svg: &mut String, profile: &Profile, bars: &[Cost], read_ceiling: Option<f64>, y: &mut f64) {
    let total = profile.total().as_secs_f64().max(1e-12);
    let longest = bars.iter().map(|cost| cost.time.as_secs_f64()).fold(1e-12, f64::max);
    text(svg, MARGIN, *y + 16.0, "start", "#111111", "bold", &profile.title);
    let head = match read_ceiling {
        Some(ceiling) => {
            format!("{:.3} ms; memory is read at {:.1} GB/s at most", total * 1e3, ceiling / 1e9)
        }
        None => format!("{:.3} ms", total * 1e3),
    };
    text(svg, MARGIN, *y + 35.0, "start", "#555555", "normal", &head);
    *y += TITLE_HEIGHT;
    for cost in bars {
        let seconds = cost.time.as_secs_f64();
        let middle = *y + ROW_HEIGHT / 2.0 + 4.5;
        let width = (seconds / longest * BAR_WIDTH).max(1.0);
        let count =
            if cost.count > 1 { format!("{} × {}", cost.label, cost.count) } else { cost.label.clone() };
        text(svg, MARGIN + LABEL_WIDTH, middle, "end", "#111111", "normal", &count);
        let left = MARGIN + LABEL_WIDTH + 8.0;
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"2\" fill=\"#c8552b\"/>",
            *y + 4.0,
            ROW_HEIGHT - 8.0
        );
        let rate = match cost.bytes {
            0 => String::new(),
            bytes => format!(", {:.1} GB/s", bytes as f64 / seconds.max(1e-9) / 1e9),
        };
        let value = format!("{:.3} ms, {:.1} %{rate}", seconds * 1e3, seconds / total * 100.0);
        text(svg, left + width + 6.0, middle, "start", "#333333", "normal", &value);
        *y += ROW_HEIGHT;
    }
    *y += MARGIN;
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, weight: &str, content: &str) {
    let content = xml::escaped(content);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\" font-weight=\"{weight}\">{content}</text>"
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bar_for_every_kind_and_one_for_the_rest() {
        let operations: Vec<Cost> = (0..20)
            .map(|index| Cost {
                label: format!("op<{}>", char::from(b'a' + index)),
                count: 1,
                time: Duration::from_millis(u64::from(100 - index)),
                bytes: 1000,
                operations: 0,
            })
            .collect();
        let svg = chart(&[Profile { title: "decode & more".into(), operations }], Some(20e9));
        // One rectangle is the background.
        assert_eq!(svg.matches("<rect").count(), BARS + 1);
        assert!(svg.contains("op&lt;a&gt;") && svg.contains("7 others × 7") && !svg.contains("op&lt;t&gt;"));
        assert!(svg.contains("decode &amp; more") && svg.contains("at most"));
        // The longest bar has the full width.
        assert!(svg.contains("width=\"370.0\""), "{svg}");
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }
}
