//! Files of examples.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::csv::each_record;
use super::document::Document;
use super::encode::{DataOptions, Examples, Long, Padding};
use super::lines::{LineFault, each_line};
use super::report::{Lengths, Report};
use super::row::{Fault, Row};
use crate::{Result, TrainError};

/// Examples of one file as token ids.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Documents in the order of the file, none longer than a step, each with a learned token. For preferences, the chosen and
    /// the rejected document of each row, which fit into one step together.
    pub documents: Vec<Document>,
    /// For each document, the number of fields of its row.
    pub fields: Vec<usize>,
    /// Counts of documents read, cut and left out.
    pub report: Report,
}

/// The files of a folder of examples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Path of the examples to learn from.
    pub train: PathBuf,
    /// Path of the examples for evaluations during training; `None` without such a file.
    pub valid: Option<PathBuf>,
    /// Path of the examples for the evaluation at the end; `None` without such a file.
    pub test: Option<PathBuf>,
}

impl Files {
    /// Finds `train.jsonl`, `valid.jsonl` and `test.jsonl` in a folder, or these names with `.csv`. A path to a file is used as
    /// the training file.
    ///
    /// # Errors
    ///
    /// [`TrainError::Data`] if there is no such path, or no `train.jsonl` or `train.csv` in the folder, or both.
    pub fn find(path: &Path) -> Result<Self> {
        if path.is_file() {
            return Ok(Self { train: path.to_owned(), valid: None, test: None });
        }
        let named = |name: &str| -> Result<Option<PathBuf>> {
            let paths = ["jsonl", "csv"].map(|end| path.join(format!("{name}.{end}")));
            match paths.each_ref().map(|path| path.is_file()) {
                [true, true] => Err(TrainError::Data {
                    place: path.display().to_string(),
                    what: format!("both {name}.jsonl and {name}.csv"),
                    hint: "leave one of them".into(),
                }),
                found => Ok(paths.into_iter().zip(found).find_map(|(path, found)| found.then_some(path))),
            }
        };
        let Some(train) = named("train")? else {
            let what = if path.is_dir() { "no train.jsonl in this folder" } else { "no such file or folder" };
            return Err(TrainError::Data {
                place: path.display().to_string(),
                what: what.into(),
                hint: "name a file of JSON lines, or a folder with train.jsonl (and valid.jsonl, test.jsonl)"
                    .into(),
            });
        };
        Ok(Self { train, valid: named("valid")?, test: named("test")? })
    }
}

impl Dataset {
    /// Reads a file of JSON lines, or of comma-separated values with a row of names if its name ends in `.csv`.
    ///
    /// The form of every row is checked before the first is encoded. So a mistake on the last of a million lines is reported
    /// within seconds.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`]; [`TrainError::Data`] with line and remedy for the first row that cannot be learned from, and for a file
    /// without rows.
    pub fn read(path: &Path, examples: &Examples<'_>, options: &DataOptions) -> Result<Self> {
        let name = path.display().to_string();
        let open = || match File::open(path) {
            Ok(file) => Ok(BufReader::with_capacity(1 << 20, file)),
            Err(error) => Err(TrainError::io(path, error)),
        };
        each_row(open()?, &name, |_, _, _| Ok(()))?;
        Self::read_from(open()?, &name, examples, options)
    }

    /// Reads a file of examples. `name` appears in errors, and its ending determines the form. Rows are checked one after the
    /// other.
    ///
    /// # Errors
    ///
    /// Errors of [`read`](Self::read).
    pub fn read_from(
        reader: impl BufRead,
        name: &str,
        examples: &Examples<'_>,
        options: &DataOptions,
    ) -> Result<Self> {
        let (mut documents, mut report) = (Vec::new(), Report::default());
        let (mut fields, mut lengths) = (Vec::new(), Vec::new());
        each_row(reader, name, |line, own_fields, row| {
            report.rows += 1;
            let found = examples.documents(row, options)?;
            lengths.extend(found.iter().map(|document| document.tokens.len() as u32));
            // The documents of a preference stay or go together.
            let together = if options.preferences { found.len() } else { 1 };
            for found in found.chunks(together) {
                for document in fitting(found, line, options, &mut report)? {
                    report.tokens += document.tokens.len() as u64;
                    report.learned += document.learned() as u64;
                    documents.push(document);
                    fields.push(own_fields);
                }
            }
            Ok(())
        })?;
        let data = |place: String, Fault { what, hint }| Err(TrainError::Data { place, what, hint });
        if report.rows == 0 {
            return data(name.into(), Fault::new("no rows", "each line is one example, a JSON object"));
        }
        report.documents = documents.len();
        report.lengths = Lengths::of(lengths);
        if documents.is_empty() {
            let what = format!(
                "no example is left: {} of {} rows are too long",
                report.skipped.documents, report.rows
            );
            return data(
                name.into(),
                Fault::new(what, format!("more than {} tokens a step", options.max_rows)),
            );
        }
        Ok(Self { documents, fields, report })
    }
}

/// Calls `each` with the line of every row of a file, the number of its fields, and the row.
fn each_row(
    reader: impl BufRead,
    name: &str,
    mut each: impl FnMut(usize, usize, Row) -> std::result::Result<(), Fault>,
) -> Result<()> {
    let is_table = Path::new(name).extension().is_some_and(|end| end.eq_ignore_ascii_case("csv"));
    let read = if is_table {
        each_record(reader, |line, mut fields| each(line, fields.len(), Row::of(&mut fields)?))
    } else {
        each_line(reader, |line, text| {
            let mut fields = Row::fields(text)?;
            each(line, fields.len(), Row::of(&mut fields)?)
        })
    };
    read.map_err(|fault| match fault {
        LineFault::Io(error) => TrainError::io(Path::new(name), error),
        LineFault::Row(line, Fault { what, hint }) => {
            TrainError::Data { place: format!("{name}:{line}"), what, hint }
        }
    })
}

/// Makes documents fit into one step together, as the options demand: keeps them, cuts them, leaves all of them out, or fails.
fn fitting(
    documents: &[Document],
    line: usize,
    options: &DataOptions,
    report: &mut Report,
) -> std::result::Result<Vec<Document>, Fault> {
    // Tokens behind the last learned one are no rows, but padding that is learned would be behind them.
    let rows_of = |document: &Document| match options.padding {
        Padding::None => document.rows(),
        Padding::FirstLearned => document.tokens.len().saturating_sub(1),
    };
    let rows: usize = documents.iter().map(rows_of).sum();
    if rows <= options.max_rows {
        let padded = |document: &Document| {
            let is_padded =
                options.padding == Padding::FirstLearned && document.tokens.len() <= options.max_rows;
            if is_padded { document.with_padding_token() } else { document.clone() }
        };
        return Ok(documents.iter().map(padded).collect());
    }
    // Each has an equal share of the step.
    let share = options.max_rows / documents.len();
    let cut: Vec<Document> = documents.iter().map(|document| document.cut(share + 1)).collect();
    match options.long {
        Long::Refuse => {
            let (tokens, most) = (rows + documents.len(), options.max_rows + documents.len());
            Err(Fault::new(
                format!("{tokens} tokens, a step has at most {most}"),
                format!("allow {rows} tokens a step, or cut or skip long examples"),
            ))
        }
        Long::Cut
            if options.padding == Padding::FirstLearned
                || cut.iter().all(|document| !document.spans.is_empty()) =>
        {
            for (cut, document) in cut.iter().zip(documents) {
                if cut.tokens.len() < document.tokens.len() {
                    report.cut.count(line, document.tokens.len() - cut.tokens.len());
                }
            }
            Ok(cut)
        }
        Long::Skip | Long::Cut => {
            for document in documents {
                report.skipped.count(line, document.tokens.len());
            }
            Ok(Vec::new())
        }
    }
}
