//! Tokens of the text form, and the errors that say where they are.

use crate::error::{Error, Result, Stage};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Token<'t> {
    /// Letters, digits and underscores that begin with a letter.
    Word(&'t str),
    /// Digits, maybe with a fraction and an exponent.
    Number(&'t str),
    /// The digits after `0x`.
    Hex(&'t str),
    /// What stands between the quotes, escapes and all.
    Str(&'t str),
    Punct(&'static str),
    End,
}

/// One token ahead of the text.
pub struct Lexer<'t> {
    text: &'t str,
    token: Token<'t>,
    /// Where the token begins, and where the text goes on after it; in bytes.
    start: usize,
    next: usize,
}

/// A mark that begins with another stands before it.
const PUNCTUATION: &[&str] = &[
    "..", "->", "+=", "*=", "==", "!=", "<=", ">=", "{", "}", "[", "]", "(", ")", ",", ":", "=", "@", "#",
    "+", "-", "*", "/", "<", ">",
];

impl<'t> Lexer<'t> {
    pub fn new(text: &'t str) -> Result<Lexer<'t>> {
        let mut lexer = Lexer { text, token: Token::End, start: 0, next: 0 };
        lexer.advance()?;
        Ok(lexer)
    }

    pub fn token(&self) -> &Token<'t> {
        &self.token
    }

    /// Byte offset of the token.
    pub fn position(&self) -> usize {
        self.start
    }

    pub fn text_len(&self) -> usize {
        self.text.len()
    }

    /// Bytes from `from` on for which `take` holds.
    fn run(&self, from: usize, take: impl Fn(u8) -> bool) -> usize {
        self.text.as_bytes()[from..].iter().take_while(|&&byte| take(byte)).count()
    }

    pub fn advance(&mut self) -> Result<()> {
        loop {
            self.next += self.run(self.next, |byte| byte.is_ascii_whitespace());
            if !self.text[self.next..].starts_with("//") {
                break;
            }
            self.next += self.run(self.next, |byte| byte != b'\n');
        }
        self.start = self.next;
        let (token, length) = self.scan()?;
        self.token = token;
        self.next = self.start + length;
        Ok(())
    }

    /// The token at `start`, and its length.
    fn scan(&self) -> Result<(Token<'t>, usize)> {
        let (text, start) = (self.text, self.start);
        let rest = &text[start..];
        let Some(&first) = rest.as_bytes().first() else { return Ok((Token::End, 0)) };
        if first.is_ascii_alphabetic() || first == b'_' {
            let length = self.run(start, |byte| byte.is_ascii_alphanumeric() || byte == b'_');
            return Ok((Token::Word(&rest[..length]), length));
        }
        if let Some(digits) = rest.strip_prefix("0x") {
            let length = self.run(start + 2, |byte| byte.is_ascii_hexdigit());
            return Ok((Token::Hex(&digits[..length]), length + 2));
        }
        if first.is_ascii_digit() {
            let length = self.number();
            return Ok((Token::Number(&rest[..length]), length));
        }
        if first == b'"' {
            let mut at = 1;
            while let Some(&byte) = rest.as_bytes().get(at) {
                match byte {
                    b'"' => return Ok((Token::Str(&rest[1..at]), at + 1)),
                    // The byte after a backslash never ends the string; it may begin a longer character.
                    b'\\' => at += 2,
                    _ => at += 1,
                }
            }
            return self.fail("a string without end".to_string());
        }
        match PUNCTUATION.iter().find(|punct| rest.starts_with(**punct)) {
            Some(punct) => Ok((Token::Punct(punct), punct.len())),
            None => {
                let character = rest.chars().next().unwrap_or_default();
                self.fail(format!("unexpected character {character:?}"))
            }
        }
    }

    /// Length of the number at `start`.
    fn number(&self) -> usize {
        let digits = |from: usize| self.run(from, |byte| byte.is_ascii_digit());
        let bytes = self.text.as_bytes();
        let mut end = self.start + digits(self.start);
        // Two dots are the mark of a range.
        if bytes.get(end) == Some(&b'.') && bytes.get(end + 1) != Some(&b'.') {
            end += 1 + digits(end + 1);
        }
        if bytes.get(end) == Some(&b'e') {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'-' | b'+')));
            if digits(end + 1 + sign) > 0 {
                end += 1 + sign + digits(end + 1 + sign);
            }
        }
        end - self.start
    }

    pub fn is_punct(&self, punct: &str) -> bool {
        matches!(self.token, Token::Punct(found) if found == punct)
    }

    /// An integer of 64 bits, with its sign.
    pub fn integer(&mut self) -> Result<i64> {
        let negative = self.eat_punct("-")?;
        let magnitude = match self.token {
            Token::Number(digits) => digits.parse::<i128>().ok(),
            _ => None,
        };
        let value = magnitude.map(|value| if negative { -value } else { value });
        let Some(value) = value.and_then(|value| i64::try_from(value).ok()) else {
            return self.expected("an integer of 64 bits");
        };
        self.advance()?;
        Ok(value)
    }

    pub fn eat_punct(&mut self, punct: &str) -> Result<bool> {
        let found = self.is_punct(punct);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub fn punct(&mut self, punct: &str) -> Result<()> {
        if self.eat_punct(punct)? { Ok(()) } else { self.expected(&format!("`{punct}`")) }
    }

    pub fn eat_keyword(&mut self, keyword: &str) -> Result<bool> {
        let found = self.token == Token::Word(keyword);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub fn keyword(&mut self, keyword: &str) -> Result<()> {
        if self.eat_keyword(keyword)? { Ok(()) } else { self.expected(&format!("`{keyword}`")) }
    }

    /// Whether the token is followed by an opening parenthesis.
    pub fn call_follows(&self) -> bool {
        self.punct_follows("(")
    }

    /// Whether the token is followed by this mark.
    pub fn punct_follows(&self, punct: &str) -> bool {
        self.text[self.next..].trim_start().starts_with(punct)
    }

    pub fn is_string(&self) -> bool {
        matches!(self.token, Token::Str(_))
    }

    pub fn string(&mut self) -> Result<String> {
        let Token::Str(raw) = self.token else { return self.expected("a string in quotes") };
        let Some(text) = unescape(raw) else { return self.fail(format!("bad escape in \"{raw}\"")) };
        self.advance()?;
        Ok(text)
    }

    /// The error that something else stands here.
    pub fn expected<T>(&self, what: &str) -> Result<T> {
        let found = match self.token {
            Token::End => "the end of the text".to_string(),
            Token::Hex(_) => "hex data".to_string(),
            _ => {
                let shown: String = self.text[self.start..self.next].chars().take(40).collect();
                format!("`{shown}`")
            }
        };
        self.fail(format!("expected {what}, found {found}"))
    }

    pub fn fail<T>(&self, message: String) -> Result<T> {
        self.fail_at(self.start, message)
    }

    pub fn fail_at<T>(&self, position: usize, message: String) -> Result<T> {
        let before = &self.text[..position];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        Err(Error::malformed(Stage::Decode, format!("line {line}, column {column}: {message}")))
    }
}

/// Text of a string literal with the escapes that Rust's `{:?}` writes.
fn unescape(raw: &str) -> Option<String> {
    let mut text = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(character) = chars.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        text.push(match chars.next()? {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '0' => '\0',
            '\\' => '\\',
            '"' => '"',
            '\'' => '\'',
            'u' => {
                let (digits, _) = chars.as_str().strip_prefix('{')?.split_once('}')?;
                chars.nth(digits.chars().count() + 1)?;
                char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
            }
            _ => return None,
        });
    }
    Some(text)
}
