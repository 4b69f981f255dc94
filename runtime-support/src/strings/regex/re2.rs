//! RE2's syntax, written in that of the `regex` crate. The two look alike, and mean different things by some texts: in
//! RE2, `\d`, `\w`, `\s` and `\b` are about ASCII, classes have no nested classes and operations, `\Q` quotes, `{` is a
//! letter where no repetition follows, operators do not follow each other, and there are fewer flags and more escapes.
//! So every construct is parsed here, and written in a way that only means one thing. What only decides which of several
//! matches is found, as groups and laziness do, is left out where a caller does not ask for it.

use std::collections::HashSet;
use std::fmt::Write;

/// Most that a repetition may count to.
const MOST: u32 = 1000;

/// What stands before an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Something,
    Repetition,
}

pub(super) struct Translator<'p> {
    pub(super) rest: &'p str,
    pub(super) out: String,
    /// Flags that are not written yet: an operator behind them is about what stands before them.
    flags: String,
    names: HashSet<&'p str>,
    /// Whether it matters which of several matches is found, and where groups are.
    ordered: bool,
}

/// The expression in the syntax of the `regex` crate, `ordered` with its groups and laziness.
pub(super) fn translate(pattern: &str, ordered: bool) -> Result<String, String> {
    let (out, flags, names) = (String::new(), String::new(), HashSet::new());
    let mut translator = Translator { rest: pattern, out, flags, names, ordered };
    translator.expression()?;
    Ok(translator.out)
}

impl<'p> Translator<'p> {
    pub(super) fn next(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        Some(letter)
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Everything up to `end`, which is passed.
    pub(super) fn until(&mut self, end: &str) -> Option<&'p str> {
        let (text, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(text)
    }

    pub(super) fn take(&mut self, bytes: usize) -> Option<&'p str> {
        let (text, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(text)
    }

    pub(super) fn literal(&mut self, letter: char) {
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
            let counts = if letter == '{' { self.counts()? } else { None };
            if counts.is_some() || matches!(letter, '*' | '+' | '?') {
                self.repetition(before, &counts.unwrap_or(letter.to_string()))?;
                before = Before::Repetition;
                continue;
            }
            let quotes_nothing = letter == '\\' && self.eat("Q\\E");
            if quotes_nothing || (letter == '(' && self.flags()?) {
                // An operator behind may repeat a repetition before.
                before = if before == Before::Repetition { Before::Something } else { before };
                continue;
            }
            self.out.push_str(&std::mem::take(&mut self.flags));
            let mut after = Before::Something;
            match letter {
                '|' => {
                    self.out.push('|');
                    after = Before::Nothing;
                }
                '(' => {
                    self.group()?;
                    depth += 1;
                    after = Before::Nothing;
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
                }
                '\\' => self.escape()?,
                _ => self.literal(letter),
            }
            before = after;
        }
        if depth == 0 { Ok(()) } else { Err("a ( without )".to_owned()) }
    }

    fn repetition(&mut self, before: Before, operator: &str) -> Result<(), String> {
        let lazy = self.eat("?");
        match before {
            Before::Nothing => Err(format!("nothing stands before {operator}")),
            Before::Repetition => Err(format!("{operator} follows another repetition")),
            Before::Something => {
                // Behind another repetition, a question mark would be about its laziness.
                self.out.push_str(if operator == "?" { "{0,1}" } else { operator });
                if lazy && self.ordered {
                    self.out.push('?');
                }
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

    /// Flags alone, up to the closing parenthesis of such a group. Returns whether it is one.
    fn flags(&mut self) -> Result<bool, String> {
        let is_flag = |letter: char| letter.is_ascii_alphabetic() || letter == '-';
        let Some(flags) = self.rest.strip_prefix('?').map(|rest| rest.split_once(')')) else {
            return Ok(false);
        };
        match flags {
            Some((flags, rest)) if flags.chars().all(is_flag) => {
                self.rest = rest;
                let flags = self.known_flags(flags)?;
                if !flags.is_empty() {
                    let _ = write!(self.flags, "(?{flags})");
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// What follows the opening parenthesis of a group that is not flags alone.
    fn group(&mut self) -> Result<(), String> {
        let group = if self.ordered { "(" } else { "(?:" };
        if !self.eat("?") {
            self.out.push_str(group);
            return Ok(());
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
            self.out.push_str(group);
            return Ok(());
        }
        let flags = self.until(":").ok_or(NO_SUCH_GROUP)?;
        let flags = self.known_flags(flags)?;
        let _ = write!(self.out, "(?{flags}:");
        Ok(())
    }

    /// Flags; of those that only decide which match is found, only where that matters.
    fn known_flags(&self, flags: &str) -> Result<String, String> {
        let (on, off) = flags.split_once('-').map_or((flags, None), |(on, off)| (on, Some(off)));
        let known = |flags: &str| flags.chars().all(|flag| matches!(flag, 'i' | 'm' | 's' | 'U'));
        if !known(on) || off.is_some_and(|off| off.is_empty() || !known(off)) {
            return Err(NO_SUCH_GROUP.to_owned());
        }
        let that_matter = |flags: &str| if self.ordered { flags.to_owned() } else { flags.replace('U', "") };
        let (on, off) = (that_matter(on), that_matter(off.unwrap_or_default()));
        Ok(if off.is_empty() { on } else { format!("{on}-{off}") })
    }
}

const NO_SUCH_GROUP: &str = "a group of a kind that RE2 does not have";
