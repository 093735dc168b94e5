// Colours for code: strings, comments, numbers, keywords and keys. One lexer for all languages:
// it knows too little to be wrong in a confusing way, and it is done in one pass.

const KEYWORDS = new Set(
  `abstract and as async await begin bool boolean break case catch char class const continue crate def default defer del
  delete do double elif else end enum except export extends extern false False final finally float fn for foreach from func
  function global go goto if impl implements import in include instanceof int interface is lambda let local long loop match
  mod module move mut namespace new nil None nonlocal not null or override package pass private protected pub public raise
  readonly ref repeat return self Self short signed sizeof static string struct super switch template then this throw trait
  true True try type typedef typeof union unless unsafe unsigned until use using var virtual void where while with yield
  select insert update delete from join group order by having limit SELECT INSERT UPDATE DELETE FROM WHERE JOIN GROUP ORDER BY
  HAVING LIMIT AND OR NOT NULL AS ON LEFT RIGHT INNER CREATE TABLE`.split(/\s+/),
);

const HASH_COMMENTS = new Set(["python", "py", "sh", "bash", "shell", "zsh", "console", "ruby", "rb", "yaml", "yml", "toml", "perl", "r", "make", "makefile", "dockerfile", "ini", "conf"]);
const DASH_COMMENTS = new Set(["sql", "lua", "haskell", "hs", "ada"]);
const PLAIN = new Set(["text", "txt", "plain", "markdown", "md", "diff", "csv", "log"]);

/** Longer code is left plain: colours are not worth a slow page. */
const LONGEST = 60_000;

/**
 * Splits code into `[class, text]` pieces; class is "" for plain text. The texts together are the code.
 *
 * @param {string} code
 * @param {string} language  as written behind the fence
 * @returns {[string, string][]}
 */
export function pieces(code, language) {
  const name = language.toLowerCase();
  if (code.length > LONGEST || PLAIN.has(name)) return [["", code]];
  const lexer = lexerFor(name);
  const found = [];
  let plain = 0;
  for (const match of code.matchAll(lexer)) {
    const kind = kindOf(match, code, name);
    if (!kind) continue;
    if (match.index > plain) found.push(["", code.slice(plain, match.index)]);
    found.push([kind, match[0]]);
    plain = match.index + match[0].length;
  }
  if (plain < code.length) found.push(["", code.slice(plain)]);
  return found;
}

function lexerFor(name) {
  const comment = HASH_COMMENTS.has(name)
    ? "#[^\\n]*"
    : DASH_COMMENTS.has(name)
      ? "--[^\\n]*"
      : name === "html" || name === "xml"
        ? "<!--[\\s\\S]*?(?:-->|$)"
        : "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)";
  const long = name === "python" || name === "py" ? '"""[\\s\\S]*?(?:"""|$)|\'\'\'[\\s\\S]*?(?:\'\'\'|$)|' : "";
  // A single quote opens a string only if it closes on its line within a few characters or follows no letter: lifetimes, apostrophes.
  const text = `${long}"(?:\\\\.|[^"\\\\\\n])*"|(?<![\\w&<])'(?:\\\\.|[^'\\\\\\n])*'|\`(?:\\\\.|[^\`\\\\])*\``;
  return new RegExp(`(?<comment>${comment})|(?<text>${text})|(?<number>\\b\\d[\\w.]*)|(?<word>[A-Za-z_]\\w*)`, "g");
}

function kindOf(match, code, name) {
  const { comment, text, number, word } = match.groups;
  if (comment) return "hl-comment";
  if (number) return "hl-number";
  if (text) return name === "json" && /^\s*:/.test(code.slice(match.index + text.length, match.index + text.length + 8)) ? "hl-key" : "hl-string";
  if (KEYWORDS.has(word)) return "hl-keyword";
  return code[match.index + word.length] === "(" ? "hl-call" : "";
}
