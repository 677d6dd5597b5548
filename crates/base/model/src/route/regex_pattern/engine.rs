//! Compiles regular expressions.

pub(super) use regex_automata::meta::Regex;
use regex_automata::{
    meta::{BuildError, Config},
    nfa::thompson::WhichCaptures,
    util::syntax,
};

use crate::Invalid;

/// Memory limit of each automaton of a compiled expression, in bytes. The cache of a search may use as much again.
const MAX_AUTOMATON_BYTES: usize = 256 * 1024;

/// Compiles an expression that matches only a whole text.
pub(super) fn compile(text: &str) -> Result<Regex, Invalid> {
    let config = Config::new()
        .nfa_size_limit(Some(MAX_AUTOMATON_BYTES))
        // The one-pass engine is needed only for captures.
        .onepass(false)
        .hybrid_cache_capacity(MAX_AUTOMATON_BYTES)
        .which_captures(WhichCaptures::None)
        .utf8_empty(false);
    let syntax = syntax::Config::new().unicode(false).utf8(false);
    let build = |expression: &str| {
        let built = Regex::builder().configure(config.clone()).syntax(syntax).build(expression);
        built.map_err(|error| refused(text, &error))
    };
    // The expression is first parsed alone, so that an unbalanced group cannot escape the anchors.
    if syntax::parse_with(text, &syntax).is_err() {
        return build(text);
    }
    build(&format!(r"\A(?:{text})\z"))
}

fn refused(text: &str, error: &BuildError) -> Invalid {
    if error.size_limit().is_some() {
        let problem = format!("'{text}' takes too much memory");
        return Invalid::new("", problem, "write smaller repetition counts");
    }
    let error = error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string);
    let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
    let hint = "write an expression of the regex crate, such as /users/[0-9]+";
    Invalid::new("", format!("'{text}' is not an expression: {reason}"), hint)
}
