//! One command on one model, as a process within limits; and whether it kept to them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant, SystemTime};

use crate::mutate::models::Model;

/// A command and its arguments. `MODEL` is the model, `TEXT` a text file, and `OUT` the only path that may be written to.
pub struct Words {
    pub name: &'static str,
    arguments: &'static [&'static str],
    /// Text for standard input.
    input: &'static str,
}

const fn words(name: &'static str, arguments: &'static [&'static str]) -> Words {
    Words { name, arguments, input: "" }
}

/// Every command that opens a model, with sizes that take milliseconds.
pub const COMMANDS: &[Words] = &[
    words("run", &["run", "-m", "MODEL", "-p", "ab c", "-n", "3"]),
    words("generate", &["generate", "-m", "MODEL", "-p", "ab c", "-n", "3", "--temp", "0"]),
    words("inspect", &["inspect", "MODEL", "--tensors"]),
    words("quantize Q8_0", &["quantize", "MODEL", "OUT", "Q8_0"]),
    words("tokenize", &["tokenize", "-m", "MODEL", "-f", "TEXT"]),
    words("logits", &["logits", "-m", "MODEL", "--ids", "1,2,3", "--out", "OUT"]),
    Words { name: "chat", arguments: &["-m", "MODEL", "-n", "3"], input: "ab\n/regen\n/clear\nc\n/quit\n" },
    words("discover", &["discover", "."]),
    words("perplexity", &["perplexity", "-m", "MODEL", "-f", "TEXT", "-c", "16"]),
    words("inspect --graph", &["inspect", "MODEL", "--graph"]),
    words("quantize Q4_K_M", &["quantize", "MODEL", "OUT", "Q4_K_M"]),
    words("bench", &["bench", "-m", "MODEL", "-p", "4", "-n", "2", "-r", "1", "--probe-mib", "0"]),
    words("inspect --json", &["inspect", "MODEL", "--json"]),
    words("generate in f32", &["generate", "-m", "MODEL", "-p", "ab", "-n", "2", "--precision", "reference"]),
    words("tokenize --decode", &["tokenize", "-m", "MODEL", "--decode", "0,1,2,100,159"]),
];

/// Bounds of one process.
pub struct Limits {
    address_kib: u64,
    file_blocks: u64,
    time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { address_kib: 2 << 20, file_blocks: (32 << 20) / 512, time: Duration::from_secs(10) }
    }
}

/// The judgement on one process.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Succeeded,
    /// An exit code of a refusal, with words on standard error.
    Refused,
    Failed(String),
}

/// The end of one process.
pub struct Outcome {
    pub verdict: Verdict,
    pub seconds: f64,
    said: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match &self.verdict {
            Verdict::Succeeded => "succeeded",
            Verdict::Refused => "refused",
            Verdict::Failed(why) => why,
        };
        let said: String = self.said.chars().take(800).collect();
        write!(f, "{what} after {:.2} s: {}", self.seconds, said.trim().replace('\n', "\n  | "))
    }
}

/// Runs `command` on the model that was written to `folder`.
pub fn run(
    binary: &Path,
    folder: &Path,
    model: &Model,
    command: &Words,
    limits: &Limits,
) -> io::Result<Outcome> {
    let text = folder.join("text.txt");
    let out = folder.join("out");
    let inputs = folder.join("input");
    fs::write(&text, "ab c abc d\nef gh ab ".repeat(8))?;
    fs::write(&inputs, command.input)?;
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| folder.join(name));
    let arguments = command.arguments.iter().map(|word| match *word {
        "MODEL" => model.path(folder).into_os_string(),
        "TEXT" => text.clone().into_os_string(),
        "OUT" => out.clone().into_os_string(),
        word => word.into(),
    });
    // The shell sets the limits, so that nothing here has to be unsafe; it becomes the command.
    let script = format!(
        "ulimit -c 0; ulimit -v {}; ulimit -f {}; exec \"$0\" \"$@\"",
        limits.address_kib, limits.file_blocks
    );
    let mut process = Command::new("sh");
    process
        .args(["-c", &script])
        .arg(binary)
        .args(arguments)
        .current_dir(folder)
        .env("HOME", folder)
        .env("XDG_CACHE_HOME", folder)
        .env("XDG_DATA_HOME", folder)
        .env("XDG_CONFIG_HOME", folder)
        .env("TMPDIR", folder)
        .env("RUST_BACKTRACE", "0")
        .stdin(File::open(&inputs)?)
        .stdout(File::create(&stdout)?)
        .stderr(File::create(&stderr)?);
    let before = tree(folder)?;
    let started = Instant::now();
    let status = wait(process.spawn()?, limits.time)?;
    let seconds = started.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&fs::read(&stderr)?).into_owned();
    let printed = String::from_utf8_lossy(&fs::read(&stdout)?).into_owned();
    let expected = [Path::new("out"), Path::new("stdout"), Path::new("stderr")];
    let verdict = judge(status, &said, &printed, strayed(&before, &tree(folder)?, &expected));
    Ok(Outcome { verdict, seconds, said })
}

/// Waits for a process to end; `None` if it has to be killed.
fn wait(mut child: std::process::Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn judge(status: Option<ExitStatus>, said: &str, printed: &str, strayed: Option<String>) -> Verdict {
    let failed = |why: String| Verdict::Failed(why);
    let Some(status) = status else { return failed("did not end".into()) };
    if [said, printed].iter().any(|text| text.contains("panicked at")) {
        return failed("panicked".into());
    }
    if let Some(strayed) = strayed {
        return failed(strayed);
    }
    match status.code() {
        Some(0) => Verdict::Succeeded,
        Some(1 | 2) if said.contains("error: ") => Verdict::Refused,
        Some(1 | 2) => failed("refused without a word".into()),
        Some(code) => failed(format!("exit code {code}")),
        None => failed(status.to_string()),
    }
}

/// Everything below a folder: paths, sizes, times of change.
type Tree = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

fn tree(folder: &Path) -> io::Result<Tree> {
    fn walk(root: &Path, folder: &Path, tree: &mut Tree) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
            if metadata.is_dir() {
                tree.insert(name, (0, None));
                walk(root, &path, tree)?;
            } else {
                tree.insert(name, (metadata.len(), metadata.modified().ok()));
            }
        }
        Ok(())
    }
    let mut all = Tree::new();
    walk(folder, folder, &mut all)?;
    Ok(all)
}

/// Names a file that appeared, changed or went and is not `expected` to.
fn strayed(before: &Tree, after: &Tree, expected: &[&Path]) -> Option<String> {
    let may = |path: &&PathBuf| expected.contains(&path.as_path());
    let changed = after.iter().find(|(path, facts)| !may(path) && before.get(*path) != Some(*facts));
    let gone = before.keys().find(|path| !may(path) && !after.contains_key(*path));
    changed
        .map(|(path, _)| format!("wrote {}", path.display()))
        .or_else(|| gone.map(|path| format!("removed {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stray_files_are_seen() {
        let tree = |names: &[(&str, u64)]| -> Tree {
            names.iter().map(|&(name, size)| (name.into(), (size, None))).collect()
        };
        let before = tree(&[("a", 1), ("b", 2)]);
        let out = [Path::new("out")];
        assert_eq!(strayed(&before, &tree(&[("a", 1), ("b", 2), ("out", 7)]), &out), None);
        let changed = strayed(&before, &tree(&[("a", 1), ("b", 3)]), &out);
        assert_eq!(changed.as_deref(), Some("wrote b"));
        assert_eq!(strayed(&before, &tree(&[("a", 1)]), &out).as_deref(), Some("removed b"));
        let partial = strayed(&before, &tree(&[("a", 1), ("b", 2), (".out.1.partial", 3)]), &out);
        assert_eq!(partial.as_deref(), Some("wrote .out.1.partial"));
    }

    #[cfg(unix)]
    #[test]
    fn ends_are_judged() {
        use std::os::unix::process::ExitStatusExt;
        let judge = |raw: i32, said: &str| judge(Some(ExitStatus::from_raw(raw)), said, "", None);
        assert_eq!(judge(0, ""), Verdict::Succeeded);
        assert_eq!(judge(1 << 8, "error: no"), Verdict::Refused);
        for (raw, said) in
            [(1 << 8, ""), (101 << 8, "error: x"), (6, "error: x"), (0, "thread panicked at x")]
        {
            assert!(matches!(judge(raw, said), Verdict::Failed(_)), "{raw} {said}");
        }
        assert!(matches!(super::judge(None, "", "", None), Verdict::Failed(_)));
    }
}
