//! Decimal numbers of any length, without rounding, and regular expressions of all numbers in a range.

use std::cmp::Ordering;

/// Most digits of a number, before and after the decimal point. The largest f64 has 309.
const MOST_DIGITS: usize = 400;

/// A decimal number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    is_negative: bool,
    /// Digits before the decimal point, without leading zeros; empty below 1.
    whole: Vec<u8>,
    /// Digits after the decimal point, without trailing zeros.
    fraction: Vec<u8>,
}

/// One end of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    pub number: Decimal,
    /// True if the bound itself belongs to the range.
    pub is_inside: bool,
}

impl Decimal {
    /// Reads the text of a JSON number. `None` for numbers with more than a few hundred digits when they are written out.
    pub fn parse(text: &str) -> Option<Self> {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (digits, power) = match text.split_once(['e', 'E']) {
            Some((digits, power)) => (digits, power.parse::<i64>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        let is_zero = digits.iter().all(|&digit| digit == b'0');
        let power = if is_zero { 0 } else { power };
        let most = MOST_DIGITS as i64;
        if digits.is_empty()
            || digits.len() > MOST_DIGITS
            || power.abs() > most
            || !digits.iter().all(u8::is_ascii_digit)
        {
            return None;
        }
        let point = whole.len() as i64 + power;
        let place = |place: i64| usize::try_from(place).ok().and_then(|place| digits.get(place)).copied();
        let digit = |at: i64| place(at).unwrap_or(b'0');
        let mut whole: Vec<u8> = (0..point.max(0)).map(digit).collect();
        let mut fraction: Vec<u8> = (point.min(0)..0).map(|_| b'0').collect();
        fraction.extend((point.max(0)..digits.len() as i64).map(digit));
        if whole.len() > MOST_DIGITS || fraction.len() > MOST_DIGITS {
            return None;
        }
        whole.drain(..whole.iter().take_while(|&&digit| digit == b'0').count());
        let zeros = fraction.iter().rev().take_while(|&&digit| digit == b'0').count();
        fraction.truncate(fraction.len() - zeros);
        Some(Self { is_negative: is_negative && !is_zero, whole, fraction })
    }

    /// True for numbers without a fraction.
    pub fn is_whole(&self) -> bool {
        self.fraction.is_empty()
    }

    /// The number as digits, without a power of ten.
    pub fn text(&self) -> String {
        let whole = if self.whole.is_empty() { "0".into() } else { text(&self.whole) };
        let point = if self.fraction.is_empty() { "" } else { "." };
        format!("{}{whole}{point}{}", if self.is_negative { "-" } else { "" }, text(&self.fraction))
    }

    /// The number as `coefficient / 10^scale`, without its sign, if the coefficient is not too large.
    pub fn scaled(&self) -> Option<(u32, u32)> {
        let digits = text(&self.whole) + &text(&self.fraction);
        let coefficient = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        Some((coefficient, self.fraction.len() as u32))
    }

    /// True if the number is a multiple of `coefficient / 10^scale`.
    pub fn is_multiple(&self, coefficient: u32, scale: u32) -> bool {
        self.fraction.len() <= scale as usize && self.rest(coefficient, scale) == 0
    }

    /// The remainder of the whole part of `|self| · 10^scale` divided by `divisor`.
    fn rest(&self, divisor: u32, scale: u32) -> u64 {
        let zeros = std::iter::repeat(&b'0');
        let digits = self.whole.iter().chain(self.fraction.iter().chain(zeros).take(scale as usize));
        digits.fold(0, |rest, digit| (rest * 10 + u64::from(digit - b'0')) % u64::from(divisor.max(1)))
    }

    /// The nearest integer above (if `is_up`) or below: the number itself if it is an integer and `is_inside`.
    fn to_integer(&self, is_inside: bool, is_up: bool) -> Self {
        let is_outward = self.is_negative != is_up;
        let mut next = Self { fraction: Vec::new(), ..self.clone() };
        if self.is_whole() && is_inside {
            return next;
        }
        if is_outward {
            increment(&mut next.whole);
        } else if self.is_whole() {
            // Towards zero from an integer; zero itself goes to the other side.
            if next.whole.is_empty() {
                return Self { is_negative: !is_up, whole: vec![b'1'], fraction: Vec::new() };
            }
            decrement(&mut next.whole);
        }
        next.is_negative &= !next.whole.is_empty();
        next
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let size = |one: &Self, other: &Self| {
            (one.whole.len(), &one.whole, &one.fraction).cmp(&(
                other.whole.len(),
                &other.whole,
                &other.fraction,
            ))
        };
        match (self.is_negative, other.is_negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => size(self, other),
            (true, true) => size(other, self),
        }
    }
}

impl Bound {
    /// The lowest integer at or above this lower bound, or the highest at or below this upper bound.
    pub fn of_integers(&self, is_lower: bool) -> Self {
        Self { number: self.number.to_integer(self.is_inside, is_lower), is_inside: true }
    }

    /// A pattern of the numbers above this lower bound.
    pub fn above(&self, is_integer: bool) -> String {
        let Self { number, is_inside } = self;
        let is_zero = number.whole.is_empty() && number.fraction.is_empty();
        if number.is_negative || is_zero && *is_inside {
            let any = any(is_integer);
            let below = magnitudes_to(number, *is_inside, is_integer);
            return if is_zero { any } else { format!("({any}|-({below}))") };
        }
        magnitudes_from(number, *is_inside, is_integer)
    }

    /// A pattern of the numbers below this upper bound.
    pub fn below(&self, is_integer: bool) -> String {
        let Self { number, is_inside } = self;
        let is_zero = number.whole.is_empty() && number.fraction.is_empty();
        let zero = Decimal { is_negative: false, whole: Vec::new(), fraction: Vec::new() };
        if number.is_negative {
            return format!("-({})", magnitudes_from(number, *is_inside, is_integer));
        }
        let negative = magnitudes_from(&zero, false, is_integer);
        if is_zero && !is_inside {
            return format!("-({negative})");
        }
        format!("(-({negative})|{})", magnitudes_to(number, *is_inside, is_integer))
    }
}

/// A pattern of all numbers that are not negative.
fn any(is_integer: bool) -> String {
    format!("(0|[1-9][0-9]*){}", if is_integer { "" } else { r"(\.[0-9]+)?" })
}

/// A pattern of the numbers from `|least|` on.
fn magnitudes_from(least: &Decimal, is_inside: bool, is_integer: bool) -> String {
    let mut next = least.whole.clone();
    if is_integer {
        if !is_inside || !least.is_whole() {
            increment(&mut next);
        }
        return integers_from(&next);
    }
    increment(&mut next);
    let same = fractions_from(&least.fraction, is_inside);
    format!(r"({}(\.[0-9]+)?|{}{same})", integers_from(&next), shown(&least.whole))
}

/// A pattern of the numbers from 0 to `|most|`.
fn magnitudes_to(most: &Decimal, is_inside: bool, is_integer: bool) -> String {
    if is_integer {
        let mut last = most.whole.clone();
        if !is_inside && most.is_whole() {
            decrement(&mut last);
        }
        return integers_to(&last);
    }
    let mut alternatives = Vec::new();
    if !most.whole.is_empty() {
        let mut last = most.whole.clone();
        decrement(&mut last);
        alternatives.push(format!(r"{}(\.[0-9]+)?", integers_to(&last)));
    }
    if let Some(same) = fractions_to(&most.fraction, is_inside) {
        alternatives.push(format!("{}{same}", shown(&most.whole)));
    }
    format!("({})", alternatives.join("|"))
}

/// A pattern of the integers from `least` on.
fn integers_from(least: &[u8]) -> String {
    if least.is_empty() {
        return any(true);
    }
    let count = least.len();
    let mut alternatives = vec![format!("[1-9][0-9]{{{count},}}"), text(least)];
    for (at, &digit) in least.iter().enumerate().filter(|(_, digit)| **digit < b'9') {
        alternatives.push(format!(
            "{}{}{}",
            text(&least[..at]),
            class(digit + 1, b'9'),
            digits(count - at - 1)
        ));
    }
    format!("({})", alternatives.join("|"))
}

/// A pattern of the integers from 0 to `most`.
fn integers_to(most: &[u8]) -> String {
    let count = most.len();
    let mut alternatives = vec!["0".to_owned()];
    if count > 1 {
        alternatives.push(format!("[1-9][0-9]{{0,{}}}", count - 2));
    }
    if count > 0 {
        alternatives.push(text(most));
    }
    for (at, &digit) in most.iter().enumerate() {
        let least = if at == 0 { b'1' } else { b'0' };
        if digit > least {
            alternatives.push(format!(
                "{}{}{}",
                text(&most[..at]),
                class(least, digit - 1),
                digits(count - at - 1)
            ));
        }
    }
    format!("({})", alternatives.join("|"))
}

/// A pattern of the decimal point and the digits after it of numbers with a fraction of at least `least`.
fn fractions_from(least: &[u8], is_inside: bool) -> String {
    let more = if is_inside { "[0-9]*" } else { "[0-9]*[1-9][0-9]*" };
    if least.is_empty() {
        return if is_inside { r"(\.[0-9]+)?".into() } else { format!(r"\.{more}") };
    }
    let mut alternatives = vec![format!("{}{more}", text(least))];
    for (at, &digit) in least.iter().enumerate().filter(|(_, digit)| **digit < b'9') {
        alternatives.push(format!("{}{}[0-9]*", text(&least[..at]), class(digit + 1, b'9')));
    }
    format!(r"\.({})", alternatives.join("|"))
}

/// A pattern of the decimal point and the digits after it of numbers with a fraction of at most `most`; `None` if there are no
/// such numbers.
fn fractions_to(most: &[u8], is_inside: bool) -> Option<String> {
    if most.is_empty() {
        return is_inside.then(|| r"(\.0+)?".into());
    }
    let mut alternatives = Vec::new();
    if is_inside {
        alternatives.push(format!("{}0*", text(most)));
    }
    for (at, &digit) in most.iter().enumerate() {
        // A fraction that ends early is smaller.
        alternatives.extend((at > 0).then(|| text(&most[..at])));
        if digit > b'0' {
            alternatives.push(format!("{}{}[0-9]*", text(&most[..at]), class(b'0', digit - 1)));
        }
    }
    Some(format!(r"(\.({}))?", alternatives.join("|")))
}

/// True if a number between two bounds is a multiple of `coefficient / 10^scale`.
pub fn has_multiple(low: &Bound, high: &Bound, coefficient: u32, scale: u32) -> bool {
    if coefficient == 0 {
        return false;
    }
    let is_below_zero = high.number.is_negative || high.number.whole.is_empty() && !high.is_inside;
    if low.number.is_negative && !is_below_zero {
        // Zero is a multiple of everything.
        return true;
    }
    let (near, far) = if low.number.is_negative { (high, low) } else { (low, high) };
    let shifted = |bound: &Bound| {
        let text = format!("{}e{scale}", bound.number.text());
        Decimal::parse(text.trim_start_matches('-')).map(|number| Bound { number, ..*bound })
    };
    let (Some(near), Some(far)) = (shifted(near), shifted(far)) else { return false };
    let mut next = near.of_integers(true).number;
    let rest = next.rest(coefficient, 0);
    if rest > 0 {
        add(&mut next.whole, u64::from(coefficient) - rest);
    }
    next <= far.of_integers(false).number
}

fn text(digits: &[u8]) -> String {
    digits.iter().map(|&digit| char::from(digit)).collect()
}

fn shown(whole: &[u8]) -> String {
    if whole.is_empty() { "0".into() } else { text(whole) }
}

fn class(from: u8, to: u8) -> String {
    if from == to {
        char::from(from).to_string()
    } else {
        format!("[{}-{}]", char::from(from), char::from(to))
    }
}

fn digits(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => "[0-9]".into(),
        _ => format!("[0-9]{{{count}}}"),
    }
}

fn increment(whole: &mut Vec<u8>) {
    add(whole, 1);
}

fn add(whole: &mut Vec<u8>, mut more: u64) {
    for digit in whole.iter_mut().rev() {
        more += u64::from(*digit - b'0');
        *digit = b'0' + (more % 10) as u8;
        more /= 10;
    }
    while more > 0 {
        whole.insert(0, b'0' + (more % 10) as u8);
        more /= 10;
    }
}

/// Subtracts 1 from an integer above 0.
fn decrement(whole: &mut Vec<u8>) {
    for digit in whole.iter_mut().rev() {
        if *digit > b'0' {
            *digit -= 1;
            break;
        }
        *digit = b'9';
    }
    if whole.first() == Some(&b'0') {
        whole.remove(0);
    }
}
