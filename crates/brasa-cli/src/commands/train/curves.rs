//! Draws losses over updates: as SVG, written without a library, and as characters.

use std::fmt::Write;

use brasa::train::metrics::Metric;

use crate::xml;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 36.0;
const MARGIN: f64 = 16.0;
/// Columns of a curve in characters.
const COLUMNS: usize = 64;
/// Rows of a curve in characters.
const ROWS: usize = 10;
/// Most points of a line. More are averaged.
const POINTS: usize = 400;

/// Points of a curve: pairs of update and loss.
type Curve = Vec<(f64, f64)>;

/// One line of a picture.
struct Series {
    name: String,
    color: &'static str,
    sign: char,
    /// True for evaluations, for which each point is marked.
    is_valid: bool,
    points: Curve,
}

/// Colour and character of each of the compared runs.
const LOOKS: [(&str, char); 6] = [
    ("#d2691e", '•'),
    ("#1e62d2", '+'),
    ("#2e8b57", '×'),
    ("#9932cc", '*'),
    ("#b8860b", '#'),
    ("#708090", '~'),
];

/// The losses of one run: those of updates, and those of evaluations.
fn of_run(metrics: &[Metric]) -> Vec<Series> {
    let of = |value: fn(&Metric) -> Option<f64>| {
        metrics.iter().filter_map(|metric| Some((metric.update as f64, value(metric)?))).collect()
    };
    let (learned, valid) = (of(|metric| metric.loss), of(|metric| metric.valid_loss));
    vec![
        Series { name: "train".into(), color: LOOKS[0].0, sign: '•', is_valid: false, points: learned },
        Series { name: "valid".into(), color: LOOKS[1].0, sign: '○', is_valid: true, points: valid },
    ]
}

/// The losses of several runs, each in its own colour. The picture in characters shows only those of updates.
fn of_runs(runs: &[(String, Vec<Metric>)]) -> Vec<Series> {
    let mut all = Vec::new();
    for ((name, metrics), (color, sign)) in runs.iter().zip(LOOKS.iter().cycle()) {
        for series in of_run(metrics) {
            let name = if series.is_valid { format!("{name}, valid") } else { name.clone() };
            all.push(Series { name, color, sign: *sign, ..series });
        }
    }
    all
}

/// Thins a curve to at most `count` points, each the mean of a run of neighbours.
fn thinned(curve: &[(f64, f64)], count: usize) -> Curve {
    let each = curve.len().div_ceil(count).max(1);
    let mean = |points: &[(f64, f64)]| {
        let share = 1.0 / points.len() as f64;
        points.iter().fold((0.0, 0.0), |(x, y), point| (x + share * point.0, y + share * point.1))
    };
    curve.chunks(each).map(mean).collect()
}

/// The least and the largest value, with a small margin.
fn range(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.fold(f64::NEG_INFINITY, f64::max);
    if most > least { (least, most) } else { (least - 0.5, most + 0.5) }
}

/// The picture of a run as SVG: losses of updates as a line, those of evaluations as a line with dots.
pub fn svg(metrics: &[Metric]) -> String {
    draw(of_run(metrics))
}

/// The picture of several runs, as SVG.
pub fn svg_of_runs(runs: &[(String, Vec<Metric>)]) -> String {
    draw(of_runs(runs))
}

fn draw(mut series: Vec<Series>) -> String {
    series.retain(|series| !series.points.is_empty());
    for series in series.iter_mut().filter(|series| !series.is_valid) {
        series.points = thinned(&series.points, POINTS);
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    let all = || series.iter().flat_map(|series| &series.points);
    if all().next().is_none() {
        return svg + "</svg>\n";
    }
    let (from, to) = range(all().map(|point| point.0));
    let (low, high) = range(all().map(|point| point.1));
    let x = |update: f64| LEFT + (update - from) / (to - from) * (WIDTH - LEFT - MARGIN);
    let y = |loss: f64| MARGIN + (high - loss) / (high - low) * (HEIGHT - BOTTOM - MARGIN);
    // Writing to a string cannot fail.
    for step in 0..=4 {
        let loss = low + (high - low) * f64::from(step) / 4.0;
        let at = y(loss);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#e5e5e5\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{loss:.3}</text>",
            WIDTH - MARGIN,
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (update, anchor) in [(from, "start"), (to, "end")] {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">update {update:.0}</text>",
            x(update),
            HEIGHT - 12.0
        );
    }
    for (number, Series { name, color, is_valid, points, .. }) in series.iter().enumerate() {
        let line: Vec<String> =
            points.iter().map(|&(update, loss)| format!("{:.1},{:.1}", x(update), y(loss))).collect();
        let dashes = if *is_valid { " stroke-dasharray=\"4 3\"" } else { "" };
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"{dashes}/>",
            line.join(" ")
        );
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\" text-anchor=\"end\">{}</text>",
            WIDTH - MARGIN,
            MARGIN + 14.0 * (number + 1) as f64,
            xml::escaped(name)
        );
        for &(update, loss) in points.iter().filter(|_| *is_valid) {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"><title>update {update:.0}: {loss:.4}</title></circle>",
                x(update),
                y(loss)
            );
        }
    }
    svg + "</svg>\n"
}

/// The curve of the updates' losses in characters, ○ for evaluations; `None` for fewer than two updates.
pub fn text(metrics: &[Metric]) -> Option<String> {
    let series = of_run(metrics);
    let evaluations = if series[1].points.is_empty() { "" } else { ", ○ evaluations" };
    let legend = format!("• loss{evaluations}");
    characters(series, &legend)
}

/// The curves of several runs' updates in characters; `None` for fewer than two updates.
pub fn text_of_runs(runs: &[(String, Vec<Metric>)]) -> Option<String> {
    let mut series = of_runs(runs);
    series.retain(|series| !series.is_valid);
    let legend: Vec<String> =
        series.iter().map(|series| format!("{} {}", series.sign, series.name)).collect();
    characters(series, &legend.join(", "))
}

fn characters(mut series: Vec<Series>, legend: &str) -> Option<String> {
    if series.iter().filter(|series| !series.is_valid).map(|series| series.points.len()).sum::<usize>() < 2 {
        return None;
    }
    for series in series.iter_mut().filter(|series| !series.is_valid) {
        series.points = thinned(&series.points, COLUMNS);
    }
    let all = || series.iter().flat_map(|series| &series.points);
    let (from, to) = range(all().map(|point| point.0));
    let (low, high) = range(all().map(|point| point.1));
    let mut cells = vec![[' '; COLUMNS]; ROWS];
    for series in &series {
        for &(update, loss) in &series.points {
            let column = ((update - from) / (to - from) * (COLUMNS - 1) as f64).round() as usize;
            let row = ((high - loss) / (high - low) * (ROWS - 1) as f64).round() as usize;
            cells[row.min(ROWS - 1)][column.min(COLUMNS - 1)] = series.sign;
        }
    }
    let mut text = String::new();
    for (row, cells) in cells.iter().enumerate() {
        let label = match row {
            0 => format!("{high:.3}"),
            _ if row == ROWS - 1 => format!("{low:.3}"),
            _ => String::new(),
        };
        let line: String = cells.iter().collect();
        let _ = writeln!(text, "{label:>8} │{}", line.trim_end());
    }
    let _ = write!(text, "{:>8} └ updates {from:.0} to {to:.0}: {legend}", "");
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Vec<Metric> {
        let update = |update: u64| Metric { update, loss: Some(4.0 / update as f64), ..Metric::default() };
        let evaluation = |update, loss| Metric { update, valid_loss: Some(loss), ..Metric::default() };
        let mut metrics = vec![evaluation(0, 4.5)];
        metrics.extend((1..=1000).map(update));
        metrics.push(evaluation(1000, 0.5));
        metrics
    }

    #[test]
    fn characters_show_the_range_and_evaluations() {
        let text = text(&metrics()).expect("a curve");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), ROWS + 1);
        assert!(lines[0].starts_with("   4.500 │○"), "{text}");
        assert!(lines[ROWS - 1].starts_with("   0.004 │"), "{text}");
        assert!(text.ends_with("updates 0 to 1000: • loss, ○ evaluations"), "{text}");
        assert_eq!(text.matches('○').count(), 3);
        assert_eq!(super::text(&[]), None);
    }

    #[test]
    fn the_picture_has_both_lines_and_no_more_points_than_it_can_show() {
        let svg = svg(&metrics());
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 2));
        let line = svg.lines().find(|line| line.starts_with("<polyline")).expect("a line");
        assert!(line.split(' ').count() < POINTS + 8);
        assert!(!svg.contains("NaN") && svg.ends_with("</svg>\n"));
        assert!(super::svg(&[]).ends_with("</svg>\n"));
        let one = [Metric { update: 1, loss: Some(2.0), ..Metric::default() }];
        assert!(!super::svg(&one).contains("NaN"));
    }

    #[test]
    fn runs_are_told_apart_by_colour_and_sign() {
        let runs = [("a<b".to_owned(), metrics()), ("other".to_owned(), metrics())];
        let svg = svg_of_runs(&runs);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (4, 4));
        assert!(svg.contains(">a&lt;b, valid</text>") && svg.contains(">other</text>"), "{svg}");
        let text = text_of_runs(&runs).expect("curves");
        assert!(text.ends_with(": • a<b, + other") && text.contains('+'), "{text}");
        assert_eq!(text_of_runs(&[]), None);
    }
}
