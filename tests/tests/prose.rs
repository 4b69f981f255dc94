//! Plain English: documents, comments, messages and help texts avoid the habits in `HABITS`. Code is not read: neither identifiers, nor
//! fenced blocks, nor text between backquotes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A habit: what to write instead, and its patterns. A pattern is a list of tokens, each a list of alternatives; `_` is any word, `%`
/// any token but "there", and `$` the end of a sentence.
struct Habit {
    instead: &'static str,
    patterns: &'static [&'static str],
}

const HABITS: &[Habit] = &[
    Habit {
        instead: "know, determine, say, decide, report",
        patterns: &["tell|tells|told|telling|teller|untold"],
    },
    Habit { instead: "name the number", patterns: &["so many", "as many", "how ever many"] },
    Habit { instead: "a clause with its own subject", patterns: &["of which", "of whom"] },
    Habit {
        instead: "the noun",
        patterns: &[
            "none such",
            "such $|,|;|:|)",
            "such is|are|was|were|has|have|had|can|may|must|do|does|in|at|on|for|from|to|and|or|with|by|which|whose|where|when|if|of",
        ],
    },
    Habit { instead: "name it", patterns: &["what else", "who else", "by what", "whatever|whichever"] },
    Habit { instead: "otherwise, other", patterns: &["that|which|and|where|when|but else"] },
    Habit {
        instead: "is not a",
        patterns: &["is|are|was|were|be none of|that|which|it", "% is|are|was|were no _"],
    },
    Habit { instead: "without", patterns: &["in|at|on|for|to which there is|are"] },
    Habit {
        instead: "one negation",
        patterns: &[
            "not not|no|none|nothing|never|without",
            "never not|no|none|nothing",
            "do|does not must|may|can",
            "no|none|nothing that|which is|are|does|do|has|have|can|may|need|needs|must not|no|none",
            "no _ that|which is|are|does|do|has|have|can|may|need|needs|must not|no|none",
            "no|none|nothing is|are|does|do|has|have|can not|no",
            "without no|none|not",
            "without _ that|which is|are|does|do|has|have not|no|none",
            "not unlike|uncommon|unusual|impossible|unlikely|unless",
        ],
    },
    Habit { instead: "about N, or: assumed", patterns: &["for , about"] },
];

/// "No longer" and the like are not nouns.
const DEGREES: &[&str] = &[
    "longer",
    "more",
    "less",
    "fewer",
    "larger",
    "greater",
    "smaller",
    "better",
    "worse",
    "slower",
    "faster",
    "later",
    "wider",
    "other",
    "different",
];

/// Sentences of README and book have at most this many words.
const LONGEST: usize = 45;

/// Lines that are right as they are, each with the reason.
const ALLOWED: &[(&str, &str)] = &[];

#[derive(Clone, Debug)]
struct Token {
    text: String,
    line: usize,
}

/// The tokens of a piece of prose: words in lower case, punctuation, "`" for code, and `$` where a sentence ends.
#[derive(Default)]
struct Prose {
    tokens: Vec<Token>,
    fenced: bool,
}

impl Prose {
    fn push(&mut self, text: impl Into<String>, line: usize) {
        self.tokens.push(Token { text: text.into(), line });
    }

    fn end(&mut self, line: usize) {
        if self.tokens.last().is_some_and(|last| last.text != "$") {
            self.push("$", line);
        }
    }

    /// Ends the text: the next one is another comment, message or document.
    fn close(&mut self, line: usize) {
        self.end(line);
        self.fenced = false;
    }

    fn line(&mut self, text: &str, line: usize) {
        let trimmed = text.trim();
        if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
            self.fenced = !self.fenced;
            return self.end(line);
        }
        if self.fenced {
            return;
        }
        let heading = trimmed.starts_with('#');
        let item = ["- ", "* ", "+ "].iter().any(|mark| trimmed.starts_with(mark))
            || trimmed.split_once(". ").is_some_and(|(number, _)| {
                !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
            });
        if trimmed.is_empty() || heading || item {
            self.end(line);
        }
        let text: Vec<char> = trimmed.trim_start_matches(['#', '-', '*', '+']).chars().collect();
        let mut at = 0;
        while at < text.len() {
            let char = text[at];
            let next = text.get(at + 1).copied().unwrap_or(' ');
            let closing = |close: char| {
                text[at + 1..].iter().position(|char| *char == close).map(|length| at + 1 + length)
            };
            match char {
                '`' => {
                    self.push("`", line);
                    at = closing('`').unwrap_or(text.len());
                }
                // A value put into a message, or the target of a link.
                '{' if closing('}').is_some() => {
                    self.push("`", line);
                    at = closing('}').unwrap();
                }
                '(' if at > 0 && text[at - 1] == ']' => at = closing(')').unwrap_or(at),
                '<' if next.is_alphabetic() || next == '/' || next == '!' => at = closing('>').unwrap_or(at),
                _ if char.is_alphanumeric() || char == '_' => {
                    let word: String = text[at..]
                        .iter()
                        .enumerate()
                        .take_while(|(index, char)| {
                            let follows = text.get(at + index + 1).is_some_and(|next| next.is_alphanumeric());
                            char.is_alphanumeric()
                                || **char == '_'
                                || (matches!(char, '\'' | '.' | '-' | '/' | ':') && follows)
                        })
                        .map(|(_, char)| char.to_ascii_lowercase())
                        .collect();
                    at += word.chars().count() - 1;
                    self.push(word, line);
                }
                '.' | '?' | '!' if !next.is_alphanumeric() => self.end(line),
                '|' => self.end(line),
                ',' | ';' | ':' | ')' => self.push(char, line),
                _ => {}
            }
            at += 1;
        }
        if heading {
            self.end(line);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Language {
    Markdown,
    Rust,
    C,
    Go,
    Python,
    /// Comments from `#` to the end of the line.
    Hash,
}

fn language(path: &Path) -> Option<Language> {
    let name = path.file_name()?.to_str()?;
    if ["Makefile", "CMakeLists.txt", "Dockerfile"].contains(&name) || path.ends_with(".ci/run") {
        return Some(Language::Hash);
    }
    if name.ends_with(".rs.txt") {
        return Some(Language::Rust);
    }
    match name.rsplit_once('.')?.1 {
        "md" => Some(Language::Markdown),
        "rs" => Some(Language::Rust),
        "c" | "h" | "cpp" | "hpp" => Some(Language::C),
        "go" => Some(Language::Go),
        "py" => Some(Language::Python),
        "toml" | "yml" | "cmake" => Some(Language::Hash),
        _ => None,
    }
}

/// The prose of a file.
fn prose(text: &str, language: Language) -> Vec<Token> {
    let mut prose = Prose::default();
    match language {
        Language::Markdown => {
            for (index, line) in text.lines().enumerate() {
                prose.line(line, index + 1);
            }
        }
        Language::Hash => {
            for (index, line) in text.lines().enumerate() {
                match line
                    .trim_start()
                    .strip_prefix('#')
                    .or_else(|| line.split_once(" # ").map(|(_, comment)| comment))
                {
                    Some(comment) => prose.line(comment, index + 1),
                    None => prose.close(index + 1),
                }
            }
        }
        _ => source(text, language, &mut prose),
    }
    prose.close(text.lines().count());
    prose.tokens
}

/// The prose of comments and string literals.
fn source(text: &str, language: Language, prose: &mut Prose) {
    let mut rest = text;
    let mut line = 1;
    // Comments of one line each belong together if nothing is between them.
    let mut comment_at = 0;
    while let Some(char) = rest.chars().next() {
        let comment = if language == Language::Python { "#" } else { "//" };
        let raw = raw_prefix(rest, language);
        if rest.starts_with(comment) {
            let end = rest.find('\n').unwrap_or(rest.len());
            if comment_at + 1 != line {
                prose.close(line);
            }
            comment_at = line;
            prose.line(rest[..end].trim_start_matches(['/', '!', '#']), line);
            rest = &rest[end..];
        } else if language != Language::Python && rest.starts_with("/*") {
            prose.close(line);
            let end = rest.find("*/").unwrap_or(rest.len());
            line = lines(&rest[2..end], line, prose, |part| part.trim_start().trim_start_matches('*'));
            rest = &rest[(end + 2).min(rest.len())..];
        } else if let Some((open, close)) = raw {
            prose.close(line);
            let body = &rest[open..];
            let end = body.find(&close).unwrap_or(body.len());
            line = lines(&body[..end], line, prose, |part| part);
            rest = &body[(end + close.len()).min(body.len())..];
        } else if char == '"' || (char == '\'' && language == Language::Python) {
            prose.close(line);
            let body = &rest[1..];
            let end = closing_quote(body, char);
            let literal = body[..end].replace("\\n", "  ").replace("\\\"", "  ").replace("\\\n", " \n");
            line = lines(&literal, line, prose, |part| part);
            rest = &body[(end + 1).min(body.len())..];
        } else if char == '\'' {
            // A character, or a lifetime of Rust.
            let mut chars = rest[1..].chars();
            let length = match (chars.next(), chars.next()) {
                (Some('\\'), Some(_)) => rest[3..].find('\'').map_or(1, |end| end + 4),
                (Some(char), Some('\'')) => char.len_utf8() + 2,
                _ => 1,
            };
            rest = &rest[length..];
        } else {
            line += usize::from(char == '\n');
            rest = &rest[char.len_utf8()..];
        }
    }
}

/// The length of the opening quote of a literal without escapes, or of several lines, and the closing one.
fn raw_prefix(rest: &str, language: Language) -> Option<(usize, String)> {
    match language {
        Language::Rust => {
            let hashes = rest.strip_prefix('r')?.bytes().take_while(|byte| *byte == b'#').count();
            rest[1 + hashes..].starts_with('"').then(|| (2 + hashes, format!("\"{}", "#".repeat(hashes))))
        }
        Language::Python => ["\"\"\"", "'''"]
            .iter()
            .find(|quote| rest.starts_with(**quote))
            .map(|quote| (3, quote.to_string())),
        Language::Go => rest.starts_with('`').then(|| (1, "`".to_string())),
        _ => None,
    }
}

fn closing_quote(body: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, char) in body.char_indices() {
        if char == quote && !escaped {
            return at;
        }
        escaped = char == '\\' && !escaped;
    }
    body.len()
}

/// Reads a text that begins in `line`; its last line.
fn lines(text: &str, line: usize, prose: &mut Prose, strip: impl Fn(&str) -> &str) -> usize {
    for (index, part) in text.split('\n').enumerate() {
        prose.line(strip(part), line + index);
    }
    let last = line + text.matches('\n').count();
    prose.close(last);
    last
}

type Pattern = Vec<Vec<&'static str>>;

fn pattern(text: &'static str) -> Pattern {
    text.split(' ').map(|part| part.split('|').collect()).collect()
}

/// All patterns, each with its advice, by their first words; under "%" those that begin with any word.
static PATTERNS: LazyLock<HashMap<&str, Vec<(Pattern, &str)>>> = LazyLock::new(|| {
    let mut all: HashMap<&str, Vec<(Pattern, &str)>> = HashMap::new();
    for habit in HABITS {
        for text in habit.patterns {
            let pattern = pattern(text);
            for first in &pattern[0] {
                all.entry(first).or_default().push((pattern.clone(), habit.instead));
            }
        }
    }
    all
});

/// What a sentence has at most one of.
static CHAINED: LazyLock<[Pattern; 2]> = LazyLock::new(|| [pattern("whose"), pattern("that|those of")]);

fn matches(pattern: &Pattern, tokens: &[Token]) -> bool {
    let mut tokens = tokens.iter();
    pattern.iter().all(|options| {
        tokens.next().is_some_and(|token| match options[..] {
            ["_"] => {
                token.text.chars().all(|char| char.is_alphanumeric() || char == '-')
                    && !DEGREES.contains(&token.text.as_str())
            }
            ["%"] => token.text != "there" && token.text != "$",
            _ => options.contains(&token.text.as_str()),
        })
    })
}

/// Line, words and advice of each finding.
fn findings(tokens: &[Token], limited: bool) -> Vec<(usize, String)> {
    let mut found = vec![];
    for (at, token) in tokens.iter().enumerate() {
        let begun = [token.text.as_str(), "%"].into_iter().filter_map(|first| PATTERNS.get(first));
        for (pattern, instead) in begun.flatten().filter(|(pattern, _)| matches(pattern, &tokens[at..])) {
            let words: Vec<&str> =
                tokens[at..][..pattern.len()].iter().map(|token| token.text.as_str()).collect();
            found.push((token.line, format!("\"{}\": {instead}", words.join(" "))));
        }
    }
    for sentence in tokens.split(|token| token.text == "$").filter(|sentence| !sentence.is_empty()) {
        let chain = (0..sentence.len())
            .filter(|at| CHAINED.iter().any(|pattern| matches(pattern, &sentence[*at..])))
            .count();
        if chain > 1 {
            found.push((sentence[0].line, format!("{chain} of \"whose\" and \"that of\": one per sentence")));
        }
        let words = sentence
            .iter()
            .filter(|token| token.text.chars().any(|char| char.is_alphanumeric() || char == '`'))
            .count();
        if limited && words > LONGEST {
            found.push((sentence[0].line, format!("{words} words: at most {LONGEST} per sentence")));
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files below a folder, without build outputs, texts of others, and this file, which has the patterns.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let skipped = ["generated", "corpus", "node_modules", "__pycache__", "prose.rs"]
            .contains(&name.as_str())
            || (name.starts_with('.') && name != ".github" && name != ".ci");
        let kind = entry.file_type().unwrap();
        // Build outputs, installed copies, and Python's environments.
        let made = ["CACHEDIR.TAG", "pyvenv.cfg"].iter().any(|mark| path.join(mark).exists())
            || name == "prefix"
            || (name == "build" && !folder.ends_with("src"));
        if !skipped && kind.is_dir() && !made {
            files(&path, found);
        } else if !skipped && kind.is_file() {
            found.push(path);
        }
    }
}

#[test]
fn documents_comments_and_messages_are_plain() {
    let root = root();
    let mut paths = vec![];
    files(&root, &mut paths);
    let mut report = String::new();
    let mut used = vec![false; ALLOWED.len()];
    let mut count = 0;
    let mut read = 0;
    for path in paths {
        let Some(language) = language(&path) else { continue };
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&root).unwrap();
        let limited = name == Path::new("README.md") || name.starts_with("book");
        read += 1;
        for (line, finding) in findings(&prose(&text, language), limited) {
            let content = text.lines().nth(line - 1).unwrap_or_default().trim();
            match ALLOWED.iter().position(|(allowed, _)| *allowed == content) {
                Some(at) => used[at] = true,
                None => {
                    count += 1;
                    writeln!(report, "{}:{line}: {finding}\n    {content}", name.display()).unwrap();
                }
            }
        }
    }
    assert!(read > 500, "only {read} files are read");
    for ((line, _), used) in ALLOWED.iter().zip(used) {
        if !used {
            count += 1;
            writeln!(report, "allowed, but not found: {line}").unwrap();
        }
    }
    assert!(count == 0, "{count} findings\n{report}");
}

fn lines_of(text: &str, language: Language) -> Vec<usize> {
    findings(&prose(text, language), false).into_iter().map(|(line, _)| line).collect()
}

#[test]
fn each_habit_is_found_in_comments_and_strings_only() {
    let rust = "// It tells\n// so\n// many.\nlet tell = `x`; /* of\n which */\n'\"'; f::<'a>(\"what else\"); r#\"none \"such\"#;\n";
    assert_eq!(lines_of(rust, Language::Rust), [1, 2, 4, 6, 6, 6]);
    assert_eq!(lines_of("tell = 'told' # whatever\n\"\"\"a\nso many\"\"\"\n", Language::Python), [1, 1, 3]);
    assert_eq!(lines_of("a `tell` b\n```\ntold\n```\nno value that is not used\n", Language::Markdown), [5]);
    assert_eq!(lines_of("x := `tell` // tells \"so many\"\ny := \"of which\"", Language::Go), [1, 1, 1, 2]);
    assert_eq!(lines_of("tell: 1 # told\n# whatever\n", Language::Hash), [1, 2]);
    for text in [
        "tensors such as this",
        "such a node",
        "there is no node",
        "it is no longer so",
        "whose and that",
        "so. Many",
    ] {
        assert!(lines_of(text, Language::Markdown).is_empty(), "{text}");
    }
    for text in [
        "if it has such.",
        "it has none such",
        "one for, about",
        "it is none of these",
        "a list in which there is one",
        "not without",
        "it does not must",
        "the size of that of one whose name",
        "what is no file",
        "`x` is no model",
        "in ways that else fail",
        "\"it is a long message that {wraps} and \\\n tells\"",
    ] {
        assert!(!lines_of(text, Language::Markdown).is_empty(), "{text}");
    }
}

#[test]
fn long_sentences_are_found() {
    let words = |count: usize| vec!["word"; count].join(" ");
    assert_eq!(findings(&prose(&words(LONGEST), Language::Markdown), true), []);
    assert_eq!(
        findings(&prose(&format!("One.\n{}.", words(LONGEST + 1)), Language::Markdown), true).len(),
        1
    );
    assert_eq!(
        findings(&prose(&format!("- {0}\n- {0}\n\n| {0} | {0} |", words(30)), Language::Markdown), true),
        []
    );
}
