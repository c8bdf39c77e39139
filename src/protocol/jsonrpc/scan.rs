//! Search for a member of JSON that was parsed before, at a fraction of a parser's cost.
//!
//! Nothing is validated: in bytes that are no JSON, any part of them may be found.

/// Returns the value at a path of members, as JSON text, or `None` if it is absent. Of a repeated
/// member the last one counts, as in every server's JSON parser.
pub(super) fn scan<'a>(json: &'a [u8], path: &[&str]) -> Option<&'a [u8]> {
    path.iter().try_fold(json, |value, name| last_member(value, name))
}

fn last_member<'a>(object: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut scanner = Scanner { rest: object };
    scanner.take(b'{')?;
    let mut found = None;
    loop {
        match scanner.next()? {
            b'"' => {}
            b'}' => return found,
            _ => scanner.take(b',')?,
        }
        scanner.next()?;
        let key = scanner.take_string()?;
        scanner.take(b':')?;
        scanner.next()?;
        let value = scanner.take_value()?;
        if is_named(key, name) {
            found = Some(value);
        }
    }
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
            at += memchr::memchr2(b'"', b'\\', self.rest.get(at..)?)?;
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
