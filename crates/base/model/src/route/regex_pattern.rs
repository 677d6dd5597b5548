//! Regular expressions, compiled once per process.

#[cfg(feature = "regex")]
mod engine;
#[cfg(not(feature = "regex"))]
#[path = "regex_pattern/no_engine.rs"]
mod engine;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use self::engine::{Regex, compile};
use crate::Invalid;

/// Maximum length of an expression, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// A regular expression that must match a whole text. It works on bytes: `\w`, `\d` and case are ASCII.
///
/// Search time is linear in the text, so no path can make it slow. Look-around and back-references are therefore not
/// supported. Equal expressions of all policies share one compiled form while any of them is in use.
#[derive(Clone)]
pub struct Pattern(Arc<Compiled>);

struct Compiled {
    text: String,
    regex: Regex,
}

/// Cache of compiled expressions by their text. Decisions stay pure, since results are the same without the cache.
static CACHE: Mutex<PatternCache> = Mutex::new(PatternCache(BTreeMap::new(), 0));

/// Weak references to compiled expressions, and the number of entries at which unused ones are removed.
struct PatternCache(BTreeMap<String, Weak<Compiled>>, usize);

impl PatternCache {
    fn find(&self, text: &str) -> Option<Pattern> {
        self.0.get(text)?.upgrade().map(Pattern)
    }

    fn add(&mut self, compiled: Compiled) -> Pattern {
        if self.0.len() >= self.1 {
            self.0.retain(|_, compiled| compiled.strong_count() > 0);
            // At most half of the entries may be unused.
            self.1 = 2 * self.0.len() + 16;
        }
        let text = compiled.text.clone();
        let compiled = Arc::new(compiled);
        self.0.insert(text, Arc::downgrade(&compiled));
        Pattern(compiled)
    }
}

fn cache() -> MutexGuard<'static, PatternCache> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pattern {
    /// Compiles an expression, which need not be anchored. Compiling a costly expression takes milliseconds.
    ///
    /// # Errors
    /// If the text is not an expression or too costly to compile, or if the program is built without the feature
    /// `regex`.
    pub fn new(text: impl Into<String>) -> Result<Self, Invalid> {
        let text = text.into();
        if text.is_empty() || text.len() > MAX_TEXT_BYTES {
            let problem = format!("an expression of {} bytes is too short or too long", text.len());
            return Err(Invalid::new("", problem, "write 1 to 1024 bytes"));
        }
        if let Some(known) = cache().find(&text) {
            return Ok(known);
        }
        let regex = compile(&text)?;
        Ok(cache().add(Compiled { text, regex }))
    }

    /// The expression as written.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Whether the expression matches the whole text.
    pub fn matches(&self, text: impl AsRef<[u8]>) -> bool {
        self.0.regex.is_match(text.as_ref())
    }

    /// Memory of the compiled expression in bytes, without search caches. The cache of each searching thread may use
    /// as much again.
    pub fn memory(&self) -> usize {
        self.0.regex.memory_usage()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.text.fmt(f)
    }
}

#[cfg(all(test, feature = "regex"))]
mod tests {
    use super::*;

    #[test]
    fn regex_pattern_matches_whole_text_only() {
        let matches = |pattern: &str, text| Pattern::new(pattern).unwrap().matches(text);
        assert!(matches("/users/[0-9]+", "/users/12"));
        assert!(!matches("/users/[0-9]+", "/users/12/x") && !matches("/users/[0-9]+", "/a/users/12"));
        assert!(!matches("a|b", "ab") && matches("a|b", "b"), "alternatives are anchored together");
        assert!(matches("(?i)/A", "/a") && matches(r"\w", "x") && !matches(r"\w", "é"));
        assert!(matches("(?x) /a # comment\n", "/a"));
    }

    #[test]
    fn invalid_and_costly_regex_patterns_are_rejected() {
        for wrong in [
            "",
            "(",
            "a)|(?:b",
            r"(a)\1",
            "(?=a)",
            "(?x)a #",
            &"a".repeat(1025),
            "((a{100}){100}){100}",
            "[^a",
        ] {
            assert!(Pattern::new(wrong).is_err(), "{wrong}");
        }
        let refused = Pattern::new("a{9999}{9999}").unwrap_err();
        assert!(refused.problem.contains("memory"), "{refused}");
    }

    #[allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]
    fn compiled(text: String) -> Compiled {
        Compiled { regex: compile(&text).unwrap(), text }
    }

    #[test]
    fn equal_regex_patterns_are_shared_and_dropped_when_unused() {
        let first = Pattern::new("/shared/[0-9]+").unwrap();
        assert!(Arc::ptr_eq(&first.0, &Pattern::new("/shared/[0-9]+").unwrap().0));
        drop(first);
        assert!(cache().find("/shared/[0-9]+").is_none());
        let mut cache = PatternCache(BTreeMap::new(), 0);
        let held: Vec<_> = (0..100).map(|i| cache.add(compiled(format!("/held/{i}")))).collect();
        for i in 0..1_000 {
            drop(cache.add(compiled(format!("/let-go/{i}"))));
        }
        assert!(cache.0.len() <= 2 * held.len() + 16, "{} are kept", cache.0.len());
        assert!(held.iter().all(|pattern| cache.find(pattern.as_str()).is_some()));
    }
}
