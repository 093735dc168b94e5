use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment of the calendar in UTC, for templates that use the date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilTime {
    days: i64,
    second_of_day: i64,
}

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl CivilTime {
    /// The present moment.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::from_unix(i64::try_from(since.as_secs()).unwrap_or_default())
    }

    /// The moment `seconds` after 1970-01-01 00:00 UTC.
    pub fn from_unix(seconds: i64) -> Self {
        Self { days: seconds.div_euclid(86_400), second_of_day: seconds.rem_euclid(86_400) }
    }

    /// Year, month and day of the month, both from 1 (Howard Hinnant's `civil_from_days`).
    fn date(self) -> (i64, usize, i64) {
        let shifted = self.days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        (year_of_era + era * 400 + i64::from(month <= 2), month as usize, day)
    }

    fn day_of_year(self) -> i64 {
        let (year, month, day) = self.date();
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month - 1];
        before + day + i64::from(leap && month > 2)
    }

    /// Formats the time like Python's `strftime` in the C locale. Unknown directives are kept as they are.
    pub fn format(self, pattern: &str) -> String {
        let (year, month, day) = self.date();
        let (hour, minute, second) =
            (self.second_of_day / 3_600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let weekday = (self.days + 3).rem_euclid(7);
        let (day_name, month_name) = (DAYS[weekday as usize], MONTHS[month - 1]);
        let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
        let mut out = String::new();
        let mut chars = pattern.chars().peekable();
        while let Some(char) = chars.next() {
            if char != '%' {
                out.push(char);
                continue;
            }
            let unpadded = chars.next_if_eq(&'-').is_some();
            let number = |value: i64, width: usize| {
                if unpadded { value.to_string() } else { format!("{value:0width$}") }
            };
            let text = match chars.next() {
                Some('Y') => year.to_string(),
                Some('y') => number(year.rem_euclid(100), 2),
                Some('m') => number(month as i64, 2),
                Some('d') => number(day, 2),
                Some('e') => format!("{day:2}"),
                Some('H') => number(hour, 2),
                Some('I') => number(hour12, 2),
                Some('M') => number(minute, 2),
                Some('S') => number(second, 2),
                Some('f') => "000000".to_owned(),
                Some('p') => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
                Some('B') => month_name.to_owned(),
                Some('b' | 'h') => month_name[..3].to_owned(),
                Some('A') => day_name.to_owned(),
                Some('a') => day_name[..3].to_owned(),
                Some('j') => number(self.day_of_year(), 3),
                Some('u') => (weekday + 1).to_string(),
                Some('w') => ((weekday + 1) % 7).to_string(),
                Some('F') => format!("{year}-{month:02}-{day:02}"),
                Some('T' | 'X') => format!("{hour:02}:{minute:02}:{second:02}"),
                Some('R') => format!("{hour:02}:{minute:02}"),
                Some('D' | 'x') => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
                Some('c') => {
                    format!(
                        "{} {} {day:2} {hour:02}:{minute:02}:{second:02} {year}",
                        &day_name[..3],
                        &month_name[..3]
                    )
                }
                Some('Z') => "UTC".to_owned(),
                Some('z') => "+0000".to_owned(),
                Some('%') | None => "%".to_owned(),
                Some(other) => format!("%{other}"),
            };
            let _ = write!(out, "{text}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::CivilTime;

    #[test]
    fn formats_as_python_does() {
        // datetime.fromtimestamp(1709214305, timezone.utc)
        let leap_day = CivilTime::from_unix(1_709_214_305);
        assert_eq!(leap_day.format("%d %b %Y"), "29 Feb 2024");
        assert_eq!(leap_day.format("%A, %B %-d, %Y %I:%M:%S %p"), "Thursday, February 29, 2024 01:45:05 PM");
        assert_eq!(leap_day.format("%F %T %j %a %y %%"), "2024-02-29 13:45:05 060 Thu 24 %");
        assert_eq!(CivilTime::from_unix(0).format("%Y-%m-%d %a"), "1970-01-01 Thu");
        assert_eq!(CivilTime::from_unix(-1).format("%c"), "Wed Dec 31 23:59:59 1969");
    }
}
