//! Reader of JSON that skips values without building them.
//!
//! The whole text is validated, at a fraction of the cost of a parser that calls back for each value. Strings are not decoded, and invalid
//! UTF-8 in them is no error. Nesting has no limit and takes no stack. Deliberately absent: the meaning of members, and decoded values.

/// A JSON text, and the position up to which it was read. Methods return `None` if the text is no JSON there; the position is arbitrary then.
pub(super) struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
}

/// Returns true if `bytes` are one JSON value.
pub(super) fn is_json(bytes: &[u8]) -> bool {
    let mut scanner = Scanner::new(bytes);
    scanner.skip_value().and_then(|()| scanner.end()).is_some()
}

/// Returns the value at a path of members, as JSON text, or `None` if there is none. Of a repeated member the last one counts, as in every
/// server's JSON parser.
pub(super) fn find_member<'a>(json: &'a [u8], path: &[&str]) -> Option<&'a [u8]> {
    path.iter().try_fold(json, |object, name| {
        let (mut scanner, mut found) = (Scanner::new(object), None);
        scanner.read_object(|key, value| {
            if is_named(key, name) {
                found = Some(value);
            }
        })?;
        found
    })
}

/// Returns true if the key `quoted` is `name`.
fn is_named(quoted: &[u8], name: &str) -> bool {
    let text = &quoted[1..quoted.len() - 1];
    let has_escape = || memchr::memchr(b'\\', text).is_some();
    text == name.as_bytes() || (has_escape() && serde_json::from_slice(quoted).is_ok_and(|text: String| text == name))
}

impl<'a> Scanner<'a> {
    pub(super) fn new(json: &'a [u8]) -> Self {
        Self { json, at: 0 }
    }

    /// Skips white space and returns the next byte, which is not taken.
    pub(super) fn next(&mut self) -> Option<u8> {
        loop {
            match *self.json.get(self.at)? {
                b' ' | b'\n' | b'\t' | b'\r' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    /// Skips white space and takes the byte `wanted`.
    pub(super) fn take(&mut self, wanted: u8) -> Option<()> {
        let is_next = self.next()? == wanted;
        self.at += 1;
        if is_next { Some(()) } else { None }
    }

    /// Skips white space to the end of the text.
    pub(super) fn end(&mut self) -> Option<()> {
        if self.next().is_none() { Some(()) } else { None }
    }

    /// Reads an object. Calls `visit` with each key, in its quotes, and the text of its value.
    pub(super) fn read_object(&mut self, mut visit: impl FnMut(&'a [u8], &'a [u8])) -> Option<()> {
        self.take(b'{')?;
        if self.next()? == b'}' {
            return self.take(b'}');
        }
        loop {
            let key = self.read_key()?;
            self.next()?;
            let begin = self.at;
            self.skip_value()?;
            visit(key, &self.json[begin..self.at]);
            if self.next()? == b'}' {
                return self.take(b'}');
            }
            self.take(b',')?;
        }
    }

    /// Reads a key and its colon. Returns the key in its quotes.
    fn read_key(&mut self) -> Option<&'a [u8]> {
        self.take(b'"')?;
        let begin = self.at - 1;
        self.skip_string()?;
        let key = &self.json[begin..self.at];
        self.take(b':')?;
        Some(key)
    }

    /// Skips a value.
    fn skip_value(&mut self) -> Option<()> {
        let mut open = Nesting::default();
        loop {
            match self.next()? {
                b'"' => {
                    self.at += 1;
                    self.skip_string()?;
                }
                b'{' => {
                    self.at += 1;
                    if self.next()? != b'}' {
                        open.push(Container::Object);
                        self.read_key()?;
                        continue;
                    }
                    self.at += 1;
                }
                b'[' => {
                    self.at += 1;
                    if self.next()? != b']' {
                        open.push(Container::Array);
                        continue;
                    }
                    self.at += 1;
                }
                b'-' | b'0'..=b'9' => self.skip_number()?,
                b't' => self.skip_word(b"true")?,
                b'f' => self.skip_word(b"false")?,
                b'n' => self.skip_word(b"null")?,
                _ => return None,
            }
            if self.skip_ends(&mut open)? {
                return Some(());
            }
        }
    }

    /// Skips the bytes between a value and the next one within `open`. Returns true if the outermost value is over.
    fn skip_ends(&mut self, open: &mut Nesting) -> Option<bool> {
        while let Some(container) = open.last() {
            match (self.next()?, container) {
                (b',', Container::Object) => {
                    self.at += 1;
                    self.read_key()?;
                    return Some(false);
                }
                (b',', Container::Array) => {
                    self.at += 1;
                    return Some(false);
                }
                (b'}', Container::Object) | (b']', Container::Array) => {
                    self.at += 1;
                    open.pop();
                }
                _ => return None,
            }
        }
        Some(true)
    }

    /// Skips the rest of a string behind its first quote.
    fn skip_string(&mut self) -> Option<()> {
        loop {
            self.at += ordinary_bytes(self.json.get(self.at..)?);
            let byte = *self.json.get(self.at)?;
            self.at += 1;
            match byte {
                b'"' => return Some(()),
                b'\\' => self.skip_escape()?,
                // A control character.
                _ => return None,
            }
        }
    }

    /// Skips an escape behind its backslash.
    fn skip_escape(&mut self) -> Option<()> {
        let byte = *self.json.get(self.at)?;
        self.at += 1;
        match byte {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.json.get(self.at..self.at + 4)?;
                self.at += 4;
                if digits.iter().all(u8::is_ascii_hexdigit) { Some(()) } else { None }
            }
            _ => None,
        }
    }

    fn skip_number(&mut self) -> Option<()> {
        if self.json.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        match self.json.get(self.at)? {
            b'0' => {
                self.at += 1;
                if self.json.get(self.at).is_some_and(u8::is_ascii_digit) {
                    return None;
                }
            }
            _ => self.skip_digits()?,
        }
        if self.json.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if let Some(b'e' | b'E') = self.json.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.json.get(self.at) {
                self.at += 1;
            }
            self.skip_digits()?;
        }
        Some(())
    }

    /// Skips one digit or more.
    fn skip_digits(&mut self) -> Option<()> {
        let begin = self.at;
        while self.json.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at > begin { Some(()) } else { None }
    }

    fn skip_word(&mut self, word: &[u8]) -> Option<()> {
        let is_next = self.json.get(self.at..)?.starts_with(word);
        self.at += word.len();
        if is_next { Some(()) } else { None }
    }
}

/// Returns the number of bytes before the first quote, backslash or control character.
fn ordinary_bytes(bytes: &[u8]) -> usize {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = EACH * 0x80;
    // The lowest byte whose high bit is set in one of these is exact; those above it may be wrong because of a borrow.
    let below = |word: u64, limit: u8| word.wrapping_sub(EACH * u64::from(limit)) & !word & HIGH;
    let equal = |word: u64, byte: u8| below(word ^ (EACH * u64::from(byte)), 1);
    let mut count = 0;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        let found = below(word, b' ') | equal(word, b'"') | equal(word, b'\\');
        if found != 0 {
            return count + found.trailing_zeros() as usize / 8;
        }
        count += 8;
    }
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
    count + rest.iter().position(is_special).unwrap_or(rest.len())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    Array,
    Object,
}

/// The containers around a value, one bit each.
#[derive(Default)]
struct Nesting {
    depth: usize,
    /// The innermost containers: as many as the depth exceeds those in `outer`. The lowest bit is the last one, 1 for an object.
    inner: u64,
    /// The outer containers, 64 in each word.
    outer: Vec<u64>,
}

impl Nesting {
    fn push(&mut self, container: Container) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.outer.push(self.inner);
        }
        self.inner = self.inner << 1 | u64::from(container == Container::Object);
        self.depth += 1;
    }

    fn last(&self) -> Option<Container> {
        match (self.depth, self.inner & 1) {
            (0, _) => None,
            (_, 0) => Some(Container::Array),
            (_, _) => Some(Container::Object),
        }
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.inner >>= 1;
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.inner = self.outer.pop().unwrap_or_default();
        }
    }
}
