//! Times of the lines: the default format of `tracing_subscriber`, byte for byte, at a fraction of
//! its cost.
//!
//! Each thread keeps the text of its last second. Absent: the clock (`base/clock.rs`).

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use crate::clock;

/// Time of a line: UTC, with microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timestamps;

impl FormatTime for Timestamps {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write(clock::system(), writer)
    }
}

/// A second since 1970, and its text.
struct Second {
    number: Option<u64>,
    text: String,
}

/// Writes a time since 1970.
fn write(time: Duration, writer: &mut impl fmt::Write) -> fmt::Result {
    thread_local! {
        static LAST: RefCell<Second> = const { RefCell::new(Second { number: None, text: String::new() }) };
    }
    let mut fraction = *b".000000Z";
    let mut micros = time.subsec_micros();
    for digit in fraction[1..7].iter_mut().rev() {
        *digit = b'0' + (micros % 10) as u8;
        micros /= 10;
    }
    let fraction = str::from_utf8(&fraction).map_err(|_| fmt::Error)?;
    LAST.with_borrow_mut(|last| {
        if last.number != Some(time.as_secs()) {
            last.text = text_of(time.as_secs())?;
            last.number = Some(time.as_secs());
        }
        writer.write_str(&last.text)?;
        writer.write_str(fraction)
    })
}

fn text_of(second: u64) -> Result<String, fmt::Error> {
    let second = i64::try_from(second).map_err(|_| fmt::Error)?;
    let at = OffsetDateTime::from_unix_timestamp(second).map_err(|_| fmt::Error)?;
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    Ok(format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}", u8::from(month)))
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::fmt::time::SystemTime;

    use super::*;

    fn written(time: Duration) -> String {
        let mut text = String::new();
        write(time, &mut text).unwrap();
        text
    }

    #[test]
    fn a_time_has_its_date_and_its_microseconds() {
        for (time, text) in [
            (Duration::ZERO, "1970-01-01T00:00:00.000000Z"),
            (Duration::new(951_827_696, 1_999), "2000-02-29T12:34:56.000001Z"),
            (Duration::new(951_827_696, 999_999_999), "2000-02-29T12:34:56.999999Z"),
            (Duration::new(1_796_083_200, 120_000_000), "2026-12-01T00:00:00.120000Z"),
        ] {
            assert_eq!(written(time), text);
        }
    }

    #[test]
    fn a_time_is_that_of_the_default_format() {
        let formatted = |timer: &dyn Fn(&mut Writer<'_>) -> fmt::Result| {
            let mut text = String::new();
            timer(&mut Writer::new(&mut text)).unwrap();
            text
        };
        // The time moves on between two readings, so that the default's are around ours.
        let before = formatted(&|writer| SystemTime.format_time(writer));
        let ours = formatted(&|writer| Timestamps.format_time(writer));
        let after = formatted(&|writer| SystemTime.format_time(writer));
        assert!(before <= ours && ours <= after, "{before} {ours} {after}");
        assert_eq!(ours.len(), before.len());
    }
}
