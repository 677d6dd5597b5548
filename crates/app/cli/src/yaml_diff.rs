//! Differences between two YAML texts.

use std::io::IsTerminal;

use similar::TextDiff;

/// A unified diff with the names of both texts.
pub(crate) fn unified(old: &str, new: &str, (old_name, new_name): (&str, &str)) -> String {
    TextDiff::from_lines(old, new).unified_diff().context_radius(3).header(old_name, new_name).to_string()
}

/// Red and green on a terminal, unless NO_COLOR is set.
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
