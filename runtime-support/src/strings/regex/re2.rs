//! RE2's syntax, written in that of the `regex` crate. The two look alike, and mean different things by some texts: in
//! RE2, `\d`, `\w`, `\s` and `\b` are about ASCII, classes have no nested classes and operations, `\Q` quotes, `{` is a
//! letter where no repetition follows, operators do not follow each other, and there are fewer flags and more escapes.
//! So every construct is parsed here, and written in a way that only means one thing. What only decides which of several
//! matches is found is left out, as groups and laziness are.

use std::collections::HashSet;
use std::fmt::Write;

/// Most that a repetition may count to.
const MOST: u32 = 1000;

/// Names of classes within brackets.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

/// What stands before an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Something,
    Repetition,
}

struct Translator<'p> {
    rest: &'p str,
    out: String,
    names: HashSet<&'p str>,
}

/// The expression in the syntax of the `regex` crate.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut translator = Translator { rest: pattern, out: String::new(), names: HashSet::new() };
    translator.expression()?;
    Ok(translator.out)
}

impl<'p> Translator<'p> {
    fn next(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        Some(letter)
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Everything up to `end`, which is passed.
    fn until(&mut self, end: &str) -> Option<&'p str> {
        let (text, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(text)
    }

    fn take(&mut self, bytes: usize) -> Option<&'p str> {
        let (text, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(text)
    }

    fn literal(&mut self, letter: char) {
        if letter.is_ascii_alphanumeric() {
            self.out.push(letter);
        } else {
            let _ = write!(self.out, "\\x{{{:x}}}", u32::from(letter));
        }
    }

    fn expression(&mut self) -> Result<(), String> {
        let mut depth = 0;
        let mut before = Before::Nothing;
        while let Some(letter) = self.next() {
            let mut after = Before::Something;
            match letter {
                '|' => {
                    self.out.push('|');
                    after = Before::Nothing;
                }
                '(' => {
                    if self.group()? {
                        depth += 1;
                        after = Before::Nothing;
                    } else {
                        after = before;
                    }
                }
                ')' if depth == 0 => return Err("a ) without (".to_owned()),
                ')' => {
                    depth -= 1;
                    self.out.push(')');
                }
                '.' | '^' | '$' => self.out.push(letter),
                '[' => self.class()?,
                '\\' if self.eat("Q") => {
                    let end = self.rest.find("\\E").unwrap_or(self.rest.len());
                    let (quoted, rest) = self.rest.split_at(end);
                    quoted.chars().for_each(|letter| self.literal(letter));
                    self.rest = rest.strip_prefix("\\E").unwrap_or(rest);
                    if quoted.is_empty() {
                        after = before;
                    }
                }
                '\\' => self.escape()?,
                '*' | '+' | '?' => {
                    self.repetition(before, letter.to_string())?;
                    after = Before::Repetition;
                }
                '{' => match self.counts()? {
                    Some(counts) => {
                        self.repetition(before, counts)?;
                        after = Before::Repetition;
                    }
                    None => self.literal('{'),
                },
                _ => self.literal(letter),
            }
            before = after;
        }
        if depth == 0 { Ok(()) } else { Err("a ( without )".to_owned()) }
    }

    fn repetition(&mut self, before: Before, operator: String) -> Result<(), String> {
        // Laziness decides which match is found, not whether there is one.
        self.eat("?");
        match before {
            Before::Nothing => Err(format!("nothing stands before {operator}")),
            Before::Repetition => Err(format!("{operator} follows another repetition")),
            Before::Something => {
                self.out.push_str(&operator);
                Ok(())
            }
        }
    }

    /// The rest of a repetition such as `{2,3}`. Without one, the brace is a letter.
    fn counts(&mut self) -> Result<Option<String>, String> {
        let Some((counts, rest)) = self.rest.split_once('}') else { return Ok(None) };
        let (least, most) =
            counts.split_once(',').map_or((counts, None), |(least, most)| (least, Some(most)));
        let is_count = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_digit())
                && (text == "0" || !text.starts_with('0'))
        };
        if !is_count(least) || most.is_some_and(|most| !most.is_empty() && !is_count(most)) {
            return Ok(None);
        }
        let count = |text: &str| text.parse::<u32>().ok().filter(|&count| count <= MOST);
        let valid = match (count(least), most) {
            (least, None | Some("")) => least.is_some(),
            (least, Some(most)) => least.zip(count(most)).is_some_and(|(least, most)| least <= most),
        };
        if !valid {
            return Err(format!("the repetition {{{counts}}}, which is to count up to {MOST} at most"));
        }
        self.rest = rest;
        Ok(Some(format!("{{{counts}}}")))
    }

    /// What follows an opening parenthesis. Returns whether it is a group, and not flags alone.
    fn group(&mut self) -> Result<bool, String> {
        if !self.eat("?") {
            self.out.push_str("(?:");
            return Ok(true);
        }
        let lookaround = ["=", "!", "<=", "<!"].iter().any(|start| self.rest.starts_with(start));
        if !lookaround && (self.eat("P<") || self.eat("<")) {
            let name = self.until(">").ok_or("a group's name without >")?;
            if name.is_empty() || !name.chars().all(|letter| letter.is_alphanumeric() || letter == '_') {
                return Err(format!("{name:?} as the name of a group"));
            }
            if !self.names.insert(name) {
                return Err(format!("two groups named {name}"));
            }
            self.out.push_str("(?:");
            return Ok(true);
        }
        let (mut on, mut off) = (String::new(), None);
        loop {
            match self.next() {
                Some(flag @ ('i' | 'm' | 's' | 'U')) => off.as_mut().unwrap_or(&mut on).push(flag),
                Some('-') if off.is_none() => off = Some(String::new()),
                Some(end @ (':' | ')')) if off.as_ref().is_none_or(|off| !off.is_empty()) => {
                    // Laziness does not matter here.
                    let mut flags = on.replace('U', "");
                    let off = off.unwrap_or_default().replace('U', "");
                    if !off.is_empty() {
                        flags = format!("{flags}-{off}");
                    }
                    if end == ':' || !flags.is_empty() {
                        let _ = write!(self.out, "(?{flags}{end}");
                    }
                    return Ok(end == ':');
                }
                _ => return Err("a group of a kind that RE2 does not have".to_owned()),
            }
        }
    }

    /// What follows a backslash outside of classes.
    fn escape(&mut self) -> Result<(), String> {
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
    fn class(&mut self) -> Result<(), String> {
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

    /// The letter that is meant by what follows a backslash.
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
        char::from_u32(code).ok_or(format!(r"\x{{{code:x}}}, which is no letter"))
    }
}
