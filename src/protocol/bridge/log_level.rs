//! Levels of log messages, which both eras have.

/// Severity of log messages, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LogLevel(usize);

impl LogLevel {
    const NAMES: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

    /// Returns the level of this name, or `None` for another name.
    pub fn of(name: &str) -> Option<Self> {
        Self::NAMES.iter().position(|known| *known == name).map(Self)
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self.0.min(Self::NAMES.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_an_order() {
        assert!(LogLevel::of("debug") < LogLevel::of("emergency") && LogLevel::of("loud").is_none());
        assert_eq!(LogLevel::of("notice").map(LogLevel::name), Some("notice"));
    }
}
