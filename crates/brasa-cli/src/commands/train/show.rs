//! Displays a training run: the first example, a progress bar, curves of the loss.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use brasa::FineTuner;
use brasa::formats::{Existing, OutputFile};
use brasa::train::data::Document;
use brasa::train::metrics::{Metric, Metrics};
use brasa::train::run::{Event, METRICS, RunOptions};
use indicatif::{ProgressBar, ProgressStyle};

use super::curves;
use crate::failure::Failure;
use crate::output;

/// Most characters of an example that are shown.
const SHOWN: usize = 1200;
/// Time between two updates of the curves' file.
const REDRAW: Duration = Duration::from_secs(10);

/// Shows an example as the model reads it, with the learned parts between ⟦ and ⟧.
pub fn sample(tuner: &FineTuner, what: &str, document: &Document) -> Result<(), Failure> {
    let text = |tokens: &[u32]| tuner.tokenizer().decode(tokens, false).map_err(brasa::Error::from);
    let (mut shown, mut at) = (String::new(), 0);
    for span in &document.spans {
        let (start, end) = (span.tokens.start as usize, span.tokens.end as usize);
        shown += &text(&document.tokens[at..start])?;
        shown.extend(["⟦", &text(&document.tokens[start..end])?, "⟧"]);
        at = end;
    }
    shown += &text(&document.tokens[at..])?;
    let cut = shown.char_indices().nth(SHOWN).map_or(shown.len(), |(at, _)| at);
    let rest = if cut < shown.len() { " …" } else { "" };
    output::note(&format!("{what}, what is learned in ⟦ ⟧:\n{}{rest}", &shown[..cut]));
    Ok(())
}

/// The display of a run's progress.
pub struct Show {
    bar: ProgressBar,
    folder: PathBuf,
    updates: u64,
    drawn: Instant,
    /// Bytes of weights and programs on the device.
    device_bytes: u64,
    /// Number of updates between two lines, if lines are requested.
    report_every: Option<u64>,
    /// The mean loss of recent updates.
    loss: Option<f64>,
    /// The sum of losses and the number of updates since the last line.
    since_line: (f64, u32),
    /// The mean share of recent pairs in which the chosen answer is preferred.
    preferred: Option<f64>,
    tokens_per_second: Option<f64>,
}

impl Show {
    pub fn new(options: &RunOptions, device_bytes: u64, report_every: Option<u64>) -> Self {
        let style = ProgressStyle::with_template("{pos}/{len} {bar:30} {msg}, {eta} left");
        let bar = ProgressBar::new(options.updates);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            bar,
            folder: options.folder.clone(),
            updates: options.updates,
            drawn: Instant::now(),
            device_bytes,
            report_every,
            loss: None,
            since_line: (0.0, 0),
            preferred: None,
            tokens_per_second: None,
        }
    }

    /// Shows an event of the run.
    pub fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Resumed(updates) => {
                let last = if *updates >= self.updates { ", which was the last" } else { "" };
                self.note(&format!("goes on after update {updates}{last}"));
                self.bar.set_position(*updates);
                self.bar.reset_eta();
            }
            Event::Comparing(done, all) => {
                self.bar.set_message(format!("the model without the adapter: {done} of {all} batches"));
            }
            Event::Update(update, seconds) => {
                let smooth = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| 0.9 * old + 0.1 * new));
                self.loss = smooth(self.loss, update.loss);
                self.since_line = (self.since_line.0 + update.loss, self.since_line.1 + 1);
                self.tokens_per_second =
                    smooth(self.tokens_per_second, update.rows as f64 / seconds.max(1e-9));
                let (loss, speed) =
                    (self.loss.unwrap_or_default(), self.tokens_per_second.unwrap_or_default());
                let memory = indicatif::HumanBytes(self.device_bytes);
                self.preferred = update.preferred.and_then(|share| smooth(self.preferred, share));
                let preferred = self
                    .preferred
                    .map_or(String::new(), |share| format!("{:.0} % preferred as wanted, ", 100.0 * share));
                let rest = format!("{preferred}{speed:.0} tokens/s, {memory}");
                self.bar.set_position(update.number);
                // Where no bar is seen, ten lines tell.
                let tenth = self.updates.div_ceil(10).max(1);
                let every = self.report_every.or_else(|| self.bar.is_hidden().then_some(tenth));
                if every.is_some_and(|every| update.number.is_multiple_of(every)) {
                    let (sum, count) = std::mem::take(&mut self.since_line);
                    let mean = sum / f64::from(count);
                    let over = output::plural(count as usize, "update");
                    let at = format!("update {}/{}", update.number, self.updates);
                    self.note(&format!("{at}: train loss {mean:.4} (mean of {over}), {rest}"));
                }
                self.bar.set_message(format!("train loss {loss:.4} (recent mean), {rest}"));
            }
            Event::Evaluated(updates, found, is_best) => {
                let best = if *is_best { ", the best so far" } else { "" };
                let preferred = found.preferred.map_or(String::new(), |share| {
                    format!(", {:.1} % of the pairs preferred as wanted", 100.0 * share)
                });
                self.note(&format!("update {updates}: valid loss {:.4}{preferred}{best}", found.loss));
                self.redraw();
            }
            Event::Best(..) => {}
            Event::Saved(_) => self.redraw(),
        }
    }

    /// Removes the progress bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    pub fn note(&self, text: &str) {
        self.bar.suspend(|| output::note(text));
    }

    /// Draws the curves again if [`REDRAW`] has passed. Errors are ignored here, since the curves are drawn at the end too, where
    /// errors are reported.
    fn redraw(&mut self) {
        if self.drawn.elapsed() > REDRAW {
            self.drawn = Instant::now();
            let _ = svg(&self.folder);
        }
    }
}

/// Writes `curves.svg` into the folder of a run; returns the metrics.
fn svg(folder: &Path) -> Result<Vec<Metric>, Failure> {
    let metrics = Metrics::read(&folder.join(METRICS)).map_err(|error| Failure::Failed(error.to_string()))?;
    write(&folder.join("curves.svg"), &curves::svg(&metrics))?;
    Ok(metrics)
}

fn write(path: &Path, svg: &str) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let mut file = OutputFile::create(path, Existing::Replace).map_err(|error| failed(&error))?;
    std::io::Write::write_all(&mut file, svg.as_bytes()).map_err(|error| Failure::file(path, &error))?;
    file.commit().map_err(|error| failed(&error))
}

/// Draws the curves of a run: `curves.svg` in its folder, and on standard error.
pub fn curves(folder: &Path) -> Result<(), Failure> {
    let metrics = svg(folder)?;
    if let Some(drawn) = curves::text(&metrics) {
        output::note(&drawn);
    }
    Ok(())
}

/// Compares runs, named by their folders: a line for each on standard output, curves on standard error and, if `svg` is given, in
/// that file.
pub fn compare(folders: &[PathBuf], svg: Option<&Path>) -> Result<(), Failure> {
    let run = |folder: &PathBuf| {
        let path = folder.join(METRICS);
        let metrics = Metrics::read(&path).map_err(|error| Failure::Failed(error.to_string()))?;
        if metrics.is_empty() {
            let hint = "name folders of runs of `brasa train`";
            return Err(Failure::Failed(format!("{}: no metrics of a run\nhint: {hint}", path.display())));
        }
        Ok((folder.display().to_string(), metrics))
    };
    let runs = folders.iter().map(run).collect::<Result<Vec<_>, Failure>>()?;
    for (name, metrics) in &runs {
        output::line(&format!("{name}: {}", summary(metrics)))?;
    }
    if let Some(drawn) = curves::text_of_runs(&runs) {
        output::note(&drawn);
    }
    if let Some(path) = svg {
        write(path, &curves::svg_of_runs(&runs))?;
        output::note(&format!("{} is written", path.display()));
    }
    Ok(())
}

/// A line about a run: updates, the mean loss of the last tenth, the best evaluation, speed and time.
fn summary(metrics: &[Metric]) -> String {
    let updates: Vec<&Metric> = metrics.iter().filter(|metric| metric.loss.is_some()).collect();
    let last = &updates[updates.len() - updates.len().div_ceil(10)..];
    let mut parts = vec![output::plural(updates.len(), "update")];
    if !last.is_empty() {
        let mean = last.iter().filter_map(|metric| metric.loss).sum::<f64>() / last.len() as f64;
        parts.push(format!("loss {mean:.4} over the last {}", last.len()));
    }
    let best = metrics.iter().filter_map(|metric| Some((metric.valid_loss?, metric.update)));
    if let Some((loss, update)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) {
        parts.push(format!("valid loss {loss:.4} after update {update}"));
    }
    let seconds: f64 = updates.iter().filter_map(|metric| metric.seconds).sum();
    let rows: usize = updates.iter().filter_map(|metric| metric.rows).sum();
    if seconds > 0.0 {
        parts.push(format!("{:.0} tokens/s, {seconds:.0} s", rows as f64 / seconds));
    }
    parts.join(", ")
}
