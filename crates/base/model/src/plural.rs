use std::fmt;

/// Displays a count with its noun, for messages: `1 endpoint`, `2 endpoints`, `0 copies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted<'a> {
    /// The count.
    pub count: usize,
    /// The noun in singular. The plural adds `s`, or replaces a final `y` by `ies`.
    pub one: &'a str,
}

/// `count` with the noun `one`.
pub fn counted(count: usize, one: &str) -> Counted<'_> {
    Counted { count, one }
}

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, one } = self;
        match (count, one.strip_suffix('y')) {
            (1, _) => write!(f, "{count} {one}"),
            (_, Some(stem)) => write!(f, "{count} {stem}ies"),
            (_, None) => write!(f, "{count} {one}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_noun_is_singular_or_plural_by_its_number() {
        let texts: Vec<_> = [0, 1, 2].map(|n| counted(n, "endpoint").to_string()).into();
        assert_eq!(texts, ["0 endpoints", "1 endpoint", "2 endpoints"]);
        assert_eq!(counted(1, "copy").to_string(), "1 copy");
        assert_eq!(counted(3, "copy").to_string(), "3 copies");
    }
}
