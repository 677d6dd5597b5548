//! Differences between two YAML texts.

use std::io::IsTerminal;

use similar::TextDiff;

/// One side of a comparison: a text and its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedText<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
}

/// Formats a unified diff with the names of both texts.
pub(crate) fn unified(old: NamedText<'_>, new: NamedText<'_>) -> String {
    let diff = TextDiff::from_lines(old.text, new.text);
    diff.unified_diff().context_radius(3).header(old.name, new.name).to_string()
}

/// Colours a diff red and green on a terminal, unless NO_COLOR is set.
pub(crate) fn coloured(text: &str) -> String {
    if !std::io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some() {
        return text.to_owned();
    }
    let line = |line: &str| match line.as_bytes().first() {
        Some(b'+') => format!("\u{1b}[32m{line}\u{1b}[0m\n"),
        Some(b'-') => format!("\u{1b}[31m{line}\u{1b}[0m\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}
