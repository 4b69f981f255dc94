//! Classes of letters and what follows a backslash.

use std::fmt::Write;

use super::re2::Translator;

/// Names of classes within brackets.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

impl Translator<'_> {
    /// What follows a backslash outside of classes.
    pub(super) fn escape(&mut self) -> Result<(), String> {
        if let Some(class) = self.class_escape()? {
            let _ = write!(self.out, "[{class}]");
            return Ok(());
        }
        // About bytes.
        for (letter, meaning) in
            [("A", r"\A"), ("z", r"\z"), ("b", r"(?-u:\b)"), ("B", r"(?-u:\B)"), ("C", "(?s-u:.)")]
        {
            if self.eat(letter) {
                self.out.push_str(meaning);
                return Ok(());
            }
        }
        let letter = self.escaped_letter()?;
        self.literal(letter);
        Ok(())
    }

    /// What follows an opening bracket.
    pub(super) fn class(&mut self) -> Result<(), String> {
        let negated = self.eat("^");
        self.out.push_str(if negated { "[^" } else { "[" });
        let mut first = true;
        // A bracket that closes is a letter if it is the first.
        while first || !self.eat("]") {
            first = false;
            let start = self.rest;
            if let Some((name, rest)) = start.strip_prefix("[:").and_then(|rest| rest.split_once(":]")) {
                if !POSIX.contains(&name.strip_prefix('^').unwrap_or(name)) {
                    return Err(format!("the class [:{name}:]"));
                }
                self.rest = rest;
                let _ = write!(self.out, "[:{name}:]");
                continue;
            }
            if self.eat("\\") {
                if let Some(class) = self.class_escape()? {
                    self.out.push_str(&class);
                    continue;
                }
                self.rest = start;
            }
            let low = self.class_letter()?;
            self.literal(low);
            if self.rest.len() > 1 && !self.rest.starts_with("-]") && self.eat("-") {
                let high = self.class_letter()?;
                if high < low {
                    return Err(format!("the range {low}-{high}, whose end is before its start"));
                }
                self.out.push('-');
                self.literal(high);
            }
        }
        self.out.push(']');
        Ok(())
    }

    fn class_letter(&mut self) -> Result<char, String> {
        match self.next() {
            Some('\\') => self.escaped_letter(),
            Some(letter) => Ok(letter),
            None => Err("a [ without ]".to_owned()),
        }
    }

    /// What follows a backslash, if that is a class: as it is written within brackets.
    fn class_escape(&mut self) -> Result<Option<String>, String> {
        const CLASSES: [(&str, &str); 6] = [
            ("d", "0-9"),
            ("D", "[^0-9]"),
            ("s", r"\t\n\x0c\r\x20"),
            ("S", r"[^\t\n\x0c\r\x20]"),
            ("w", "0-9A-Za-z_"),
            ("W", "[^0-9A-Za-z_]"),
        ];
        for (letter, class) in CLASSES {
            if self.eat(letter) {
                return Ok(Some(class.to_owned()));
            }
        }
        let mut negated = self.eat("P");
        if !negated && !self.eat("p") {
            return Ok(None);
        }
        let mut letter = [0; 4];
        let mut name = match self.next() {
            Some('{') => self.until("}").ok_or("a class of Unicode without }")?,
            Some(one) => one.encode_utf8(&mut letter),
            None => return Err(r"a \p at the end".to_owned()),
        };
        if let Some(rest) = name.strip_prefix('^') {
            (name, negated) = (rest, !negated);
        }
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_') {
            return Err(format!("the class {name:?} of Unicode"));
        }
        let class = match name {
            // RE2 does not count letters that are yet to be assigned.
            "C" => r"\p{Cc}\p{Cf}\p{Co}".to_owned(),
            _ => format!(r"\p{{{name}}}"),
        };
        Ok(Some(if negated { format!("[^{class}]") } else { class }))
    }

    /// The letter that an escape sequence stands for, without its backslash.
    fn escaped_letter(&mut self) -> Result<char, String> {
        let letter = self.next().ok_or("a \\ at the end")?;
        let code = match letter {
            'a' => 0x07,
            'f' => 0x0c,
            'n' => 0x0a,
            'r' => 0x0d,
            't' => 0x09,
            'v' => 0x0b,
            '1'..='7' if !self.rest.starts_with(|next| matches!(next, '0'..='7')) => {
                return Err(format!("\\{letter}: RE2 does not refer to groups"));
            }
            '0'..='7' => {
                let digits =
                    self.rest.bytes().take(2).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                let (octal, rest) = self.rest.split_at(digits);
                self.rest = rest;
                octal.bytes().fold(u32::from(letter) - 0x30, |code, digit| code * 8 + u32::from(digit - b'0'))
            }
            'x' => {
                let digits = if self.eat("{") { self.until("}") } else { self.take(2) };
                let hexadecimal = |digits: &&str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let digits = digits.filter(hexadecimal).ok_or(r"\x without hexadecimal digits")?;
                u32::from_str_radix(digits, 16).map_err(|_| format!(r"\x{{{digits}}}"))?
            }
            _ if letter.is_ascii() && !letter.is_ascii_alphanumeric() => u32::from(letter),
            _ => return Err(format!("\\{letter}, which RE2 does not have")),
        };
        char::from_u32(code).ok_or(format!(r"\x{{{code:x}}}, which is not a letter"))
    }
}
