//! Search for a member of JSON that was parsed before, at a fraction of a parser's cost.
//!
//! Nothing is validated: in bytes that are no JSON, any part of them may be found.

/// Returns the value at a path of members, as JSON text, or `None` if it is absent. Of a repeated
/// member the last one counts, as in every server's JSON parser. Reads each byte once.
pub(super) fn scan<'a>(json: &'a [u8], path: &[&str]) -> Option<&'a [u8]> {
    let mut scanner = Scanner { rest: json };
    scanner.next()?;
    scanner.find(path)?
}

/// Returns true if the text is one object with its end, and nothing behind it. Quotes and brackets
/// alone count, so no parser reads an object in a text for which this is false.
pub fn is_one_object(text: &[u8]) -> bool {
    let mut scanner = Scanner { rest: text };
    scanner.next() == Some(b'{') && scanner.skip_nested().is_some() && scanner.next().is_none()
}

/// Returns true if the string `quoted` is `name`.
fn is_named(quoted: &[u8], name: &str) -> bool {
    let text = &quoted[1..quoted.len() - 1];
    text == name.as_bytes()
        || (memchr::memchr(b'\\', text).is_some()
            && serde_json::from_slice(quoted).is_ok_and(|text: String| text == name))
}

/// The bytes that are left of a text.
struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    /// Takes a value that begins here, and returns its part at `path`, if there is one.
    fn find(&mut self, path: &[&str]) -> Option<Option<&'a [u8]>> {
        let (name, within) = match path {
            [name, within @ ..] if self.rest.first() == Some(&b'{') => (*name, within),
            [] => return self.take_value().map(Some),
            [..] => return self.take_value().map(|_| None),
        };
        self.rest = &self.rest[1..];
        let mut found = None;
        loop {
            match self.next()? {
                b'"' => {}
                b'}' => {
                    self.rest = &self.rest[1..];
                    return Some(found);
                }
                _ => self.take(b',')?,
            }
            self.next()?;
            let key = self.take_string()?;
            self.take(b':')?;
            self.next()?;
            if is_named(key, name) {
                found = self.find(within)?;
            } else {
                self.take_value()?;
            }
        }
    }

    /// Skips white space and returns the next byte, which is not taken.
    fn next(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    /// Skips white space and takes the byte `wanted`, or returns `None` if another one is next.
    fn take(&mut self, wanted: u8) -> Option<()> {
        self.next();
        self.rest = self.rest.strip_prefix(&[wanted])?;
        Some(())
    }

    /// Takes a string that begins here, and returns it with its quotes.
    fn take_string(&mut self) -> Option<&'a [u8]> {
        let mut at = 1;
        loop {
            at += quote_or_escape(self.rest.get(at..)?)?;
            if self.rest[at] == b'"' {
                let (string, rest) = self.rest.split_at(at + 1);
                self.rest = rest;
                return Some(string);
            }
            // An escaped quote does not end the string.
            at += 2;
        }
    }

    /// Takes a value that begins here, and returns its text.
    fn take_value(&mut self) -> Option<&'a [u8]> {
        let begin = self.rest;
        match begin.first()? {
            b'"' => return self.take_string(),
            b'{' | b'[' => self.skip_nested()?,
            _ => {
                let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                self.rest = &begin[begin.iter().position(is_end).unwrap_or(begin.len())..];
            }
        }
        Some(&begin[..begin.len() - self.rest.len()])
    }

    /// Skips an object or an array that begins here.
    fn skip_nested(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            let at = self.rest.iter().position(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']'))?;
            self.rest = &self.rest[at..];
            match self.rest[0] {
                b'"' => {
                    self.take_string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                _ => depth -= 1,
            }
            self.rest = &self.rest[1..];
            if depth == 0 {
                return Some(());
            }
        }
    }
}

/// Returns the place of the first quote or backslash. Most strings here are short, so a call of
/// `memchr` would cost more than their bytes.
fn quote_or_escape(text: &[u8]) -> Option<usize> {
    const SHORT: usize = 32;
    let is_either = |byte: &u8| matches!(byte, b'"' | b'\\');
    let (short, long) = text.split_at(text.len().min(SHORT));
    let at = short.iter().position(is_either);
    at.or_else(|| memchr::memchr2(b'"', b'\\', long).map(|at| short.len() + at))
}
