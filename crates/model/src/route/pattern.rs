//! Regular expressions, compiled once in a process.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use regex_automata::{
    meta::{BuildError, Config, Regex},
    nfa::thompson::WhichCaptures,
    util::syntax,
};

use crate::Invalid;

/// The longest expression, in bytes.
const LONGEST: usize = 1024;
/// How much memory each automaton of a compiled expression may take, in bytes, and as much again for what a search keeps.
const MOST: usize = 256 * 1024;

/// A regular expression that a whole text must match, over bytes: `\w`, `\d` and case are those of ASCII.
///
/// The engine searches in time that is linear in the text, so that no path, however made, is slow to look at. It has
/// neither look-around nor back-references for that reason. Equal expressions share what they were compiled to, in all policies of a
/// process, for as long as any of them is in use.
#[derive(Clone)]
pub struct Pattern(Arc<Compiled>);

struct Compiled {
    text: String,
    regex: Regex,
}

/// What is in use, by text. Compiling is not deciding: the result is the same wherever it comes from.
static IN_USE: Mutex<InUse> = Mutex::new(InUse(BTreeMap::new(), 0));

/// Compiled expressions for others to find, and how many there may be before those that are not in use any more are let go.
struct InUse(BTreeMap<String, Weak<Compiled>>, usize);

impl InUse {
    fn find(&self, text: &str) -> Option<Pattern> {
        self.0.get(text)?.upgrade().map(Pattern)
    }

    fn add(&mut self, compiled: Compiled) -> Pattern {
        if self.0.len() >= self.1 {
            self.0.retain(|_, compiled| compiled.strong_count() > 0);
            // At most half of what is kept may be of no use.
            self.1 = 2 * self.0.len() + 16;
        }
        let text = compiled.text.clone();
        let compiled = Arc::new(compiled);
        self.0.insert(text, Arc::downgrade(&compiled));
        Pattern(compiled)
    }
}

fn in_use() -> MutexGuard<'static, InUse> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pattern {
    /// Compiles an expression, which need not be anchored; milliseconds for a costly one.
    pub fn new(text: impl Into<String>) -> Result<Self, Invalid> {
        let text = text.into();
        let refused = |problem: String, hint: &str| Invalid::new("", problem, hint);
        if text.is_empty() || text.len() > LONGEST {
            let problem = format!("an expression of {} bytes is too short or too long", text.len());
            return Err(refused(problem, "write 1 to 1024 bytes"));
        }
        if let Some(known) = in_use().find(&text) {
            return Ok(known);
        }
        match compile(&text) {
            Ok(regex) => Ok(in_use().add(Compiled { text, regex })),
            Err(error) if error.size_limit().is_some() => {
                Err(refused(format!("'{text}' takes too much memory"), "write smaller counts of repetition"))
            }
            Err(error) => {
                let error = error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string);
                let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
                let hint = "write an expression of the regex crate, such as /users/[0-9]+";
                Err(refused(format!("'{text}' is not an expression: {reason}"), hint))
            }
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Whether all of the text matches.
    pub fn matches(&self, text: &str) -> bool {
        self.0.regex.is_match(text.as_bytes())
    }

    /// How many bytes it takes, without what searches keep: at most as much again for each thread that searches.
    pub fn memory(&self) -> usize {
        self.0.regex.memory_usage()
    }
}

fn compile(text: &str) -> Result<Regex, Box<BuildError>> {
    let config = Config::new()
        .nfa_size_limit(Some(MOST))
        // They are for captures, of which there are none.
        .onepass(false)
        .hybrid_cache_capacity(MOST)
        .which_captures(WhichCaptures::None)
        .utf8_empty(false);
    let syntax = syntax::Config::new().unicode(false).utf8(false);
    let build =
        |text: &str| Regex::builder().configure(config.clone()).syntax(syntax).build(text).map_err(Box::new);
    // By itself first: what closes a group that it did not open must not get out of the anchors.
    if syntax::parse_with(text, &syntax).is_err() {
        return build(text);
    }
    build(&format!(r"\A(?:{text})\z"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_speaks_of_the_whole_text() {
        let matches = |pattern: &str, text| Pattern::new(pattern).unwrap().matches(text);
        assert!(matches("/users/[0-9]+", "/users/12"));
        assert!(!matches("/users/[0-9]+", "/users/12/x") && !matches("/users/[0-9]+", "/a/users/12"));
        assert!(!matches("a|b", "ab") && matches("a|b", "b"), "alternatives are anchored together");
        assert!(matches("(?i)/A", "/a") && matches(r"\w", "x") && !matches(r"\w", "é"));
        assert!(matches("(?x) /a # comment\n", "/a"));
    }

    #[test]
    fn expressions_that_cannot_be_or_cost_too_much_are_refused() {
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

    fn compiled(text: String) -> Compiled {
        Compiled { regex: compile(&text).unwrap(), text }
    }

    #[test]
    fn equal_expressions_are_compiled_once_and_let_go_when_not_in_use() {
        let first = Pattern::new("/shared/[0-9]+").unwrap();
        assert!(Arc::ptr_eq(&first.0, &Pattern::new("/shared/[0-9]+").unwrap().0));
        drop(first);
        assert!(in_use().find("/shared/[0-9]+").is_none());
        let mut in_use = InUse(BTreeMap::new(), 0);
        let held: Vec<_> = (0..100).map(|i| in_use.add(compiled(format!("/held/{i}")))).collect();
        for i in 0..1_000 {
            drop(in_use.add(compiled(format!("/let-go/{i}"))));
        }
        assert!(in_use.0.len() <= 2 * held.len() + 16, "{} are kept", in_use.0.len());
        assert!(held.iter().all(|pattern| in_use.find(pattern.as_str()).is_some()));
    }
}
