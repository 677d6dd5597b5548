//! Replaces the engine in builds without the feature `regex`: no expression compiles.

use crate::Invalid;

/// Placeholder that cannot be constructed.
pub(super) enum Regex {}

impl Regex {
    pub(super) fn is_match(&self, _: &[u8]) -> bool {
        match *self {}
    }

    pub(super) fn memory_usage(&self) -> usize {
        match *self {}
    }
}

/// Refuses every expression.
pub(super) fn compile(text: &str) -> Result<Regex, Invalid> {
    let problem = format!("this program is built without regular expressions, and cannot match '{text}'");
    Err(Invalid::new("", problem, "build it with the feature `regex` of fairmesh-client"))
}
