//! Continues after an error, so that several errors are reported at once.
//!
//! The entry with the error is overwritten with spaces, which preserves positions, and the document is read again.
//! The normal reader thus finds every further error. A parser with error recovery was rejected: it would be a second
//! reader of every document.

use super::{Diagnostic, DocumentText, document, error::ManifestError};

/// Maximum number of errors reported per document.
const MAX_ERRORS: usize = 20;
/// Maximum number of times that a document is read to find its errors.
const MAX_READS: usize = 4 * MAX_ERRORS;
/// Documents larger than this many bytes, such as large shard maps, are read only once.
const MAX_BYTES: usize = 256 * 1024;

/// Returns all errors of a document, in the order in which they were found.
pub(super) fn errors(file: &str, text: &str, piece: &DocumentText<'_>) -> Vec<ManifestError> {
    let Err(first) = document(piece) else { return Vec::new() };
    let mut errors = vec![located(file, text, piece, first)];
    let (mut left, mut found) = (piece.text.to_owned(), errors[0].offset);
    let mut erased = Vec::new();
    for _ in 0..MAX_READS {
        if errors.len() == MAX_ERRORS || left.len() > MAX_BYTES {
            break;
        }
        let Some(entry) = found.checked_sub(piece.offset).and_then(|at| entry_at(&left, at)) else { break };
        let spaces: String =
            left[entry.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect();
        left.replace_range(entry.clone(), &spaces);
        erased.push(entry.start);
        let Err(next) = document(&DocumentText { text: &left, ..*piece }) else { break };
        let is_of_whole = next.is_of_whole;
        let next = next.in_whole(piece.text);
        let next = located(file, text, piece, next);
        found = next.offset;
        // The missing field may have been overwritten after an earlier error. In this case the enclosing entry is
        // overwritten too.
        let is_own = next.message.ends_with(" is missing")
            || (is_short_list(&next.message) && {
                let list = entry_at(&left, found.saturating_sub(piece.offset));
                list.is_some_and(|list| erased.iter().any(|at| list.contains(at)))
            })
            || next.message == "the document has no kind"
            || errors.iter().any(|error| error.offset == next.offset)
            || (is_of_whole && {
                let whole = extent(&left, found.saturating_sub(piece.offset));
                erased.iter().any(|at| whole.contains(at))
            });
        if !is_own {
            errors.push(next);
        }
    }
    errors
}

/// Whether a list has too few entries, because one may have been overwritten.
fn is_short_list(message: &str) -> bool {
    message.ends_with("the list is empty") || message.contains("the list here has ")
}

fn located(file: &str, text: &str, piece: &DocumentText<'_>, diagnostic: Diagnostic) -> ManifestError {
    ManifestError::new(file, text, piece, diagnostic)
}

/// Returns the range of the map or list that begins at `start`. Includes preceding blank lines, because the first
/// entries may have been overwritten with blanks.
fn extent(text: &str, start: usize) -> std::ops::Range<usize> {
    let Some(rest) = text.get(start..) else { return start..start };
    if rest.starts_with(['{', '[']) {
        let mut scanner = Scanner::default();
        let end = rest.bytes().enumerate().find(|(position, byte)| {
            scanner.step(*position, *byte);
            scanner.starts.is_empty()
        });
        return start..start + end.map_or(rest.len(), |(position, _)| position + 1);
    }
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let (indent, is_list) = (start - line_start, rest.starts_with("- "));
    let belongs = |line: &str| {
        let bare = line.trim_start();
        let this = line.len() - bare.len();
        bare.is_empty() || this > indent || (this == indent && (!is_list || bare.starts_with("- ")))
    };
    let first = rest.split('\n').next().unwrap_or_default().len();
    let below = rest[first..].split_inclusive('\n').skip(1).take_while(|line| belongs(line));
    let end = start + first + 1 + below.map(str::len).sum::<usize>();
    let before = text[..line_start].trim_end().len();
    before..end.min(text.len())
}

/// Returns the range of the map or list entry around a position.
fn entry_at(text: &str, at: usize) -> Option<std::ops::Range<usize>> {
    let line_start = text.get(..at)?.rfind('\n').map_or(0, |newline| newline + 1);
    match flow_entry(text, at) {
        Some(entry) => Some(entry),
        None => block_entry(text, line_start),
    }
}

/// Returns the entry around a position within the innermost `{…}` or `[…]`, up to the comma after it or to the
/// closing bracket.
fn flow_entry(text: &str, at: usize) -> Option<std::ops::Range<usize>> {
    let mut scanner = Scanner::default();
    let mut bytes = text.bytes().enumerate();
    for (position, byte) in bytes.by_ref().take(at) {
        scanner.step(position, byte);
    }
    let (depth, start) = (scanner.starts.len(), *scanner.starts.last()?);
    for (position, byte) in bytes {
        let separates = scanner.quote.is_none() && scanner.starts.len() == depth;
        match byte {
            b',' if separates => return Some(start..position + 1),
            b'}' | b']' if separates => return Some(start..position),
            _ => scanner.step(position, byte),
        }
    }
    None
}

/// Tracks open brackets and quotes.
#[derive(Default)]
struct Scanner {
    /// Start of the current entry in each open bracket.
    starts: Vec<usize>,
    quote: Option<u8>,
    in_comment: bool,
    is_escaped: bool,
    /// `significant` is the last byte that is not a space, `last` the last byte.
    significant: u8,
    last: u8,
}

impl Scanner {
    fn step(&mut self, position: usize, byte: u8) {
        let begins_value = matches!(self.significant, 0 | b':' | b'-' | b',' | b'{' | b'[' | b'\n');
        match (self.quote, byte) {
            _ if self.in_comment => self.in_comment = byte != b'\n',
            (Some(b'"'), b'\\') if !self.is_escaped => {
                self.is_escaped = true;
                return;
            }
            (Some(quote), _) if quote == byte && !self.is_escaped => self.quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') if begins_value => self.quote = Some(byte),
            (None, b'#') if matches!(self.last, 0 | b' ' | b'\n') => self.in_comment = true,
            (None, b'{' | b'[') if begins_value => self.starts.push(position + 1),
            (None, b'}' | b']') => _ = self.starts.pop(),
            (None, b',') => {
                if let Some(start) = self.starts.last_mut() {
                    *start = position + 1;
                }
            }
            (None, _) => {}
        }
        self.is_escaped = false;
        self.last = byte;
        if byte != b' ' {
            self.significant = byte;
        }
    }
}

/// Returns the entry whose key is on the given line, with all lines of its value.
fn block_entry(text: &str, line_start: usize) -> Option<std::ops::Range<usize>> {
    let line = text[line_start..].split('\n').next()?;
    let mut start = line.len() - line.trim_start().len();
    let marker = start;
    while let Some(rest) = line[start..].strip_prefix("- ") {
        start = line.len() - rest.trim_start().len();
    }
    if line[start..].trim().is_empty() {
        return None;
    }
    let opens = line.trim_end().ends_with(':');
    let mut end = line_start + line.len();
    let mut has_sibling = false;
    for next in text.get(end + 1..).unwrap_or_default().split('\n') {
        let bare = next.trim_start();
        let indent = next.len() - bare.len();
        let is_content = !bare.is_empty() && !bare.starts_with('#');
        let belongs = indent > start || (opens && indent == start && bare.starts_with("- "));
        if is_content && !belongs {
            has_sibling = indent == start && !bare.starts_with("- ");
            break;
        }
        end += 1 + next.len();
    }
    // A list entry whose only field is removed is removed entirely.
    let from = if has_sibling { start } else { marker };
    Some(line_start + from..end.min(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str, at: &str) -> String {
        text[entry_at(text, text.find(at).unwrap()).unwrap()].to_owned()
    }

    #[test]
    fn innermost_yaml_entry_around_error_position_is_found() {
        let text = "a: 1\nb:\n  - {x: '}', y: 2, z: [3, 4]}\n  - name: n\n    deep:\n      e: 5\n    f: 6\n  - only: 7\ng: 8\n";
        for (at, found) in [
            ("1", "a: 1"),
            ("2", " y: 2,"),
            ("'}'", "x: '}',"),
            ("4", " 4"),
            ("z:", " z: [3, 4]"),
            ("n\n", "name: n"),
            ("deep", "deep:\n      e: 5"),
            ("7", "- only: 7"),
            ("8", "g: 8\n"),
        ] {
            assert_eq!(entry(text, at), found, "{at}");
        }
    }

    #[test]
    fn extent_of_yaml_map_or_list_is_found() {
        let text = "a: {b: [1, 2], c: 3}\nd:\n\n  e: 4\n  f:\n    - 5\n    - 6\n  g: 7\nh: 8\n";
        for (at, found) in [
            ("{", "{b: [1, 2], c: 3}"),
            ("[", "[1, 2]"),
            ("e:", "\n\n  e: 4\n  f:\n    - 5\n    - 6\n  g: 7\n"),
            ("- 5", "\n    - 5\n    - 6\n"),
            ("a:", text),
        ] {
            assert_eq!(&text[extent(text, text.find(at).unwrap())], found, "{at}");
        }
    }

    #[test]
    fn brackets_in_yaml_strings_do_not_delimit_entries() {
        assert_eq!(entry("path: /a{b\nhint: it's [x # {\nc: 9", "9"), "c: 9");
        assert_eq!(entry("a: \"{\\\"\"\nb: 1", "1"), "b: 1");
    }

    #[test]
    fn list_whose_entries_were_all_wrong_is_not_reported_as_empty() {
        let messages = |text: &str| -> Vec<String> {
            super::super::errors("x", text).into_iter().map(|error| error.message).collect()
        };
        let head = "kind: ShardMap\nservice: a/b\nshards:";
        for list in [
            "\n- {id: 0, begin: 0}\n- {id: 1, begin: 9}\n- {id: 2, begin: 12}\n",
            " [{id: 0, begin: 0}, {id: 1, begin: 9}, {id: 2, begin: 12}]\n",
        ] {
            let found = messages(&format!("{head}{list}"));
            assert!(
                found.len() == 3 && found.iter().all(|message| message.contains("'begin'")),
                "{list}: {found:?}"
            );
        }
        assert_eq!(messages(&format!("{head} []\n")), ["shards: the list is empty"]);
    }
}
