//! Differences between two YAML texts.

use std::io::IsTerminal;

use fairmesh_model::counted;
use similar::{ChangeTag, TextDiff};

/// Lines of a brief difference.
const MAX_BRIEF_LINES: usize = 3;

/// A unified diff with the names of both texts.
pub(crate) fn unified(old: &str, new: &str, (old_name, new_name): (&str, &str)) -> String {
    TextDiff::from_lines(old, new).unified_diff().context_radius(3).header(old_name, new_name).to_string()
}

/// A difference in one line, of the first few changed lines: `timeout: 5s -> 6s; + localOnly: true`.
pub(crate) fn brief(old: &str, new: &str) -> String {
    let diff = TextDiff::from_lines(old, new);
    // A removed line waits for an added one of the same field.
    let mut parts: Vec<String> = Vec::new();
    let mut removed_lines: Vec<&str> = Vec::new();
    for change in diff.iter_all_changes() {
        let line = change.value().trim();
        match change.tag() {
            ChangeTag::Delete => removed_lines.push(line),
            ChangeTag::Insert => {
                match removed_lines.iter().position(|old| field(old).is_some() && field(old) == field(line)) {
                    Some(i) => {
                        parts.extend(removed_lines.drain(..i).map(removed));
                        let old = removed_lines.remove(0);
                        parts.push(format!("{old} -> {}", value(line)));
                    }
                    None => parts.push(format!("+ {line}")),
                }
            }
            ChangeTag::Equal => parts.extend(removed_lines.drain(..).map(removed)),
        }
    }
    parts.extend(removed_lines.drain(..).map(removed));
    match parts.len().saturating_sub(MAX_BRIEF_LINES) {
        _ if parts.is_empty() => "unchanged".into(),
        0 => parts.join("; "),
        more => format!("{}; and {}", parts[..MAX_BRIEF_LINES].join("; "), counted(more, "more line")),
    }
}

fn removed(line: &str) -> String {
    format!("- {line}")
}

/// The field of a single-line YAML mapping.
fn field(line: &str) -> Option<&str> {
    line.split_once(": ").map(|(field, _)| field)
}

fn value(line: &str) -> &str {
    line.split_once(": ").map_or(line, |(_, value)| value)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brief_difference_names_what_changed_and_stays_in_one_line() {
        let old = "service: shop/cart\ntimeout: 5s\nretries:\n  attempts: 2\n";
        assert_eq!(brief(old, old), "unchanged");
        assert_eq!(brief(old, &old.replace("5s", "6s")), "timeout: 5s -> 6s");
        assert_eq!(brief(old, &old.replace("timeout: 5s\n", "")), "- timeout: 5s");
        let more = format!("{old}subset: 4\na: 1\nb: 2\nc: 3\n");
        assert_eq!(brief(old, &more), "+ subset: 4; + a: 1; + b: 2; and 1 more line");
        let both = old.replace("timeout: 5s", "timeout: 7s").replace("attempts: 2", "attempts: 3");
        assert_eq!(brief(old, &both), "timeout: 5s -> 7s; attempts: 2 -> 3");
    }
}
