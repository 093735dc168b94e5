//! Limits on grammars, which come from untrusted clients.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Most bytes of a grammar's text, or of a schema as JSON.
pub const SOURCE_BYTES: usize = 2 << 20;
/// Most subschemas of a JSON schema. Published schemas have up to 3,000.
pub const SUBSCHEMAS: usize = 8_000;
/// Most optional properties of one object. The work on a mask grows with their square.
pub const OPTIONAL_PROPERTIES: usize = 500;
/// Most patterns that one text may have to match at once. The time to compile them grows with the product of their states.
pub const PATTERNS_TOGETHER: usize = 4;
/// Most nesting levels of the values of a JSON schema.
pub const SCHEMA_DEPTH: usize = 100;
/// Most time for compiling a grammar.
pub const COMPILE_TIME: Duration = Duration::from_secs(10);
/// Bytes of the stack of a thread that compiles. The library recurses through chains of references, up to [`SUBSCHEMAS`] of them.
/// Only the used part takes memory.
pub const COMPILE_STACK_BYTES: usize = 512 << 20;

/// Most threads that compile grammars at once, including threads with results that are no longer awaited.
pub const COMPILE_THREADS: usize = 4;
/// Most grammars that wait to be compiled.
pub const WAITING_GRAMMARS: usize = 256;

/// Most compiled grammars that a model keeps.
pub const KEPT_GRAMMARS: usize = 64;
/// Most bytes of the sources of the grammars that a model keeps.
pub const KEPT_BYTES: usize = 4 << 20;

/// Limits of the parser's work: about 25 ms for one mask, and about 100 MB for one text.
pub fn parser() -> ParserLimits {
    ParserLimits {
        max_lexer_states: 64_000,
        // Four for each property of an object that may be left out.
        max_items_in_row: 4_000,
        step_max_items: 100_000,
        step_lexer_fuel: 250_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Limits for a parser that is used only near the ends of long texts. Its first mask takes about 100 ms, since no earlier masks
/// prepared anything.
pub fn exact_parser() -> ParserLimits {
    let limits = parser();
    ParserLimits { step_lexer_fuel: 4 * limits.step_lexer_fuel, ..limits }
}
