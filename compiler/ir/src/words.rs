//! Mistyped names: which of the known ones is meant.

use strsim::osa_distance as distance;

/// The name that a word is likely to stand for: one that differs by few letters, or that either begins with the other.
pub fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let word = word.to_lowercase();
    let likely = |name: &&str| {
        let name = name.to_lowercase();
        let shorter = word.len().min(name.len());
        let begins = shorter >= PREFIX && (word.starts_with(&name) || name.starts_with(&word));
        begins || distance(&word, &name) <= word.chars().count() / PREFIX
    };
    names.into_iter().filter(likely).min_by_key(|name| distance(&word, &name.to_lowercase()))
}

/// The least letters of a beginning. One letter in three may be wrong.
const PREFIX: usize = 3;

/// The end of a message about an unknown name: a question, or nothing where no name is near.
pub fn did_you_mean<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    nearest(word, names).map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_letters_are_mistyped() {
        for (a, b, wanted) in
            [("", "", 0), ("", "ab", 2), ("relu", "rleu", 1), ("kitten", "sitting", 3), ("é", "e", 1)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (wanted, wanted), "{a} {b}");
        }
        let names = ["Relu", "LeakyRelu", "Selu", "Conv"];
        for (word, wanted) in [
            ("Reluu", Some("Relu")),
            ("relu", Some("Relu")),
            ("Convolution", Some("Conv")),
            ("LeakyReLU", Some("LeakyRelu")),
            ("Softmax", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), wanted, "{word}");
        }
        assert_eq!(did_you_mean("Cnv", names), "; did you mean `Conv`?");
        assert_eq!(did_you_mean("nothing", names), "");
    }
}
