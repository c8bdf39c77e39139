//! Text format of the log: the default format of `tracing_subscriber`, byte for byte, at a fraction
//! of its cost.
//!
//! Each call ends with a line, and the default formatter spends a tenth of a short call on the
//! fields of that line. Owned here: fields of plain types. Absent: the time of a line
//! (`timestamps.rs`), and all other fields and lines for a terminal, which the default formatter
//! writes.

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, DefaultVisitor, Writer};

/// Fields of a line or a span.
#[derive(Debug, Default)]
pub struct Fields(DefaultFields);

impl<'w> FormatFields<'w> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        if writer.has_ansi_escapes() {
            return self.0.format_fields(writer, fields);
        }
        let mut visitor = Visitor { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct Visitor<'w> {
    writer: Writer<'w>,
    /// True before the first field.
    is_empty: bool,
    result: fmt::Result,
}

impl Visitor<'_> {
    /// Writes a field as the default formatter does.
    fn default(&mut self, record: impl FnOnce(&mut DefaultVisitor<'_>)) {
        let mut default = DefaultVisitor::new(self.writer.by_ref(), std::mem::take(&mut self.is_empty));
        record(&mut default);
        self.result = self.result.and(default.finish());
    }

    /// Writes the name of a field, and the gap before it.
    fn begin(&mut self, field: &Field) -> fmt::Result {
        if !std::mem::take(&mut self.is_empty) {
            self.writer.write_char(' ')?;
        }
        self.writer.write_str(field.name())?;
        self.writer.write_char('=')
    }

    /// Writes a field whose text needs no escapes.
    fn write_plain(&mut self, field: &Field, text: &str) {
        self.write(field, |writer| writer.write_str(text));
    }

    fn write(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        if self.result.is_ok() {
            self.result = self.begin(field).and_then(|()| value(&mut self.writer));
        }
    }
}

/// Returns true for a name that the default formatter treats in a way of its own.
fn is_special(name: &str) -> bool {
    name == "message" || name.starts_with("r#") || name.starts_with("log.")
}

impl Visit for Visitor<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write_plain(field, itoa::Buffer::new().format(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write_plain(field, itoa::Buffer::new().format(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write_plain(field, if value { "true" } else { "false" });
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if !is_special(field.name()) && value.bytes().all(is_plain) {
            self.write(field, |writer| {
                writer.write_char('"')?;
                writer.write_str(value)?;
                writer.write_char('"')
            });
        } else {
            self.default(|default| default.record_str(field, value));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.default(|default| default.record_error(field, value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if is_special(field.name()) {
            self.default(|default| default.record_debug(field, value));
        } else {
            self.write(field, |writer| write!(writer, "{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::with_default;
    use tracing::{error_span, info};
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;
    use crate::sync;

    /// Lines in memory.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            sync::lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Kept {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    impl Kept {
        /// Returns the lines without their times.
        fn lines(&self) -> String {
            let text = String::from_utf8(sync::lock(&self.0).clone()).expect("text");
            text.lines().map(|line| format!("{}\n", line.split_once('Z').map_or(line, |(_, rest)| rest))).collect()
        }
    }

    fn write_lines() {
        let error = std::io::Error::other("out of \u{1b}[31m order");
        let (none, some) = (None::<&str>, Some("a b"));
        info!(
            text = "plain",
            odd = "a \"quote\", a \\, ü and a \n",
            count = 7_u64,
            less = -7_i64,
            is = true,
            none,
            some,
            "the {}",
            "message"
        );
        info!(%error, shown = %"as it is", debugged = ?some, ratio = 0.5, wide = u128::MAX, "a message with \u{1b}[31m");
        info!("no field");
        info!(only = 1_u64);
        info!(r#type = 2_u64, log.file = "x", r#fn = "y", other = ?2, "special names");
        error_span!("request", trace_id = %"abc", number = 1_u64).in_scope(|| info!(in_span = true, "in a span"));
        let source = std::io::Error::other(std::io::Error::other("the source"));
        info!(error = &source as &(dyn std::error::Error + 'static), "an error");
    }

    #[test]
    fn lines_are_those_of_the_default_format() {
        for is_terminal in [false, true] {
            let (ours, default) = (Kept::default(), Kept::default());
            let subscriber = || tracing_subscriber::fmt().with_ansi(is_terminal);
            with_default(subscriber().with_writer(default.clone()).finish(), write_lines);
            let fast = subscriber().fmt_fields(Fields::default()).with_writer(ours.clone());
            with_default(fast.finish(), write_lines);
            assert_eq!(ours.lines(), default.lines());
        }
    }
}
