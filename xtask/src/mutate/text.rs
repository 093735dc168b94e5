//! Changes of plain bytes, and of chat templates.

use brasa_fuzz::Rng;

/// Changes one place of a file, whatever is in it. Returns what was done.
pub fn bytes(input: &mut Vec<u8>, rng: &mut Rng) -> String {
    // Headers are at the start, and a few bytes of weights are of little interest.
    let near = if rng.below(3) > 0 { input.len().min(4096) } else { input.len() };
    let at = rng.below(near + 1);
    match rng.below(6) {
        0 => {
            input.truncate(at);
            format!("cut at byte {at}")
        }
        1 => {
            let end = at + rng.below((input.len() - at).min(64) + 1);
            input.drain(at..end);
            format!("bytes {at} to {end} gone")
        }
        2 => {
            let end = at + rng.below((input.len() - at).min(64) + 1);
            let piece = input[at..end].to_vec();
            let times = 1 + rng.below(20);
            input.splice(at..at, piece.repeat(times));
            format!("bytes {at} to {end} {times} times more")
        }
        3 => {
            let count = rng.below(32);
            let noise: Vec<u8> = (0..count).map(|_| rng.bits() as u8).collect();
            input.splice(at..at, noise);
            format!("{count} random bytes at {at}")
        }
        _ => {
            let times = 1 + rng.below(8);
            for _ in 0..times {
                let bit = rng.below(near.max(1) * 8);
                if let Some(byte) = input.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            format!("{times} bits flipped")
        }
    }
}

/// Pieces of templates: harmless ones, and ones that nest, grow or never end.
const PIECES: &[&str] = &[
    "{{ messages }}",
    "{{ messages | tojson(indent=2000000000) }}",
    "{% for a in range(100000000) %}x{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% set s = 'x' %}{% for i in range(64) %}{% set s = s ~ s %}{% endfor %}{{ s }}",
    "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(d=[1]) %}{% for i in range(60) %}{% set ns.d = [ns.d, ns.d] %}{% endfor %}{{ ns.d | tojson }}",
    "{% set ns = namespace(d=[1]) %}{% for i in range(30000) %}{% set ns.d = [ns.d] %}{% endfor %}{{ ns.d }}",
    "{{ 'x' * 2000000000 }}",
    "{{ '%2000000000s' | format('x') }}",
    "{{ 'aaaa' | replace('', 'b' * 100000) }}",
    "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "{{ ('a,' * 100000).split(',') | join('x' * 100000) }}",
    "{{ 'x' | indent(2000000000) }}",
    "{{ 'x' | center(2000000000) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% include 'config.json' %}",
    "{% extends '/etc/passwd' %}",
    "{% import 'x' as x %}",
    "{{ raise_exception('no') }}",
    "{{ strftime_now('%' * 1000) }}",
    "{{ messages[99999999999999999999] }}",
    "{{ messages[0].content[::-1] }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ -9223372036854775808 // -1 }}",
    "{{ 1 // 0 }}{{ 1 % 0 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ range(10) | list | map('range') | list }}",
    "{{ 'a'.join(messages) }}",
    "{{ self }}{{ loop }}{{ caller() }}",
    "{% raw %}{{ {% endraw %}",
    "{%- if x is defined %}",
    "{% endif %}",
    "{{",
    "%}",
    "{#",
    "\u{0}\u{1b}[2J\u{202e}",
    "<|im_end|>",
];

/// Openings and endings that nest.
const NESTS: &[(&str, &str, &str)] = &[
    ("{{ ", "not ", "x }}"),
    ("{{ ", "(", "1 }}"),
    ("{{ ", "[", "1 }}"),
    ("{{ ", "-", "1 }}"),
    ("{{ x", ".a", " }}"),
    ("{{ x", "|string", " }}"),
    ("{{ x", "[0]", " }}"),
    ("{{ 1", " + 1", " }}"),
    ("{{ 1", " if 1 else 1", " }}"),
    ("{{ 'a'", " ~ 'a'", " }}"),
    ("", "{% if 1 %}", ""),
    ("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
    ("", "{% for a in [1] %}", ""),
    ("{{ {", "'a': {", "} }}"),
];

/// Changes a chat template in one place. Returns what was done.
pub fn template(source: &mut String, rng: &mut Rng) -> String {
    let mut at = rng.below(source.len() + 1);
    while !source.is_char_boundary(at) {
        at -= 1;
    }
    match rng.below(5) {
        0 => {
            source.truncate(at);
            format!("template cut at {at}")
        }
        1 => {
            let mut end = (at + rng.below(40)).min(source.len());
            while !source.is_char_boundary(end) {
                end -= 1;
            }
            source.replace_range(at..end.max(at), "");
            format!("template without {at} to {end}")
        }
        2 => {
            let (open, inner, close) = rng.choose(NESTS);
            let times = *rng.choose(&[10, 300, 3000, 30_000, 300_000]);
            source.insert_str(at, &format!("{open}{}{close}", inner.repeat(times)));
            format!("template with {inner:?} {times} times")
        }
        _ => {
            let piece = rng.choose(PIECES);
            // At the end it is sure to be reached, unless something before it fails.
            let at = *rng.choose(&[0, at, source.len()]);
            source.insert_str(at, piece);
            format!("template with {piece:?}")
        }
    }
}
