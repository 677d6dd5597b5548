use fairmesh_model::{counted, suggestion};
use serde_saphyr::{DefaultMessageFormatter, Error, Location, MessageFormatter};

use super::{documents::DocumentText, value_position};

/// A parse error with its position. Line and column count from 1; the span is in bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}; {hint}")]
pub struct ManifestError {
    /// The name of the file, as passed by the caller.
    pub file: String,
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
    /// The start of the span.
    pub offset: usize,
    /// The length of the span; never past the end of the line.
    pub length: usize,
    /// The problem, with the quoted value and the path of the field, if any.
    pub message: String,
    /// The remedy.
    pub hint: String,
}

/// An error within one document, before the document's position in the file is known.
pub(super) struct Diagnostic {
    location: Option<Location>,
    message: String,
    hint: String,
    /// Whether the error concerns a whole map or list rather than one value.
    pub(super) is_of_whole: bool,
}

impl Diagnostic {
    pub(super) fn at(location: Location, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let location = Some(location).filter(|location| location.line() > 0);
        Self { location, message: message.into(), hint: hint.into(), is_of_whole: false }
    }

    /// Creates an error about the whole document, shown at its first line.
    pub(super) fn at_start(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { location: None, message: message.into(), hint: hint.into(), is_of_whole: false }
    }
}

impl Diagnostic {
    /// Converts list indexes to those in the text `whole`. The error comes from a copy of that text without some list
    /// entries.
    pub(super) fn in_whole(self, whole: &str) -> Self {
        let numbered = self.location.zip(self.message.split_once(": ")).and_then(|(at, (path, problem))| {
            let path = path.contains('[').then(|| value_position::path_at(whole, path, at))??;
            Some(format!("{path}: {problem}"))
        });
        let message = numbered.unwrap_or(self.message);
        Self { message, ..self }
    }
}

impl ManifestError {
    pub(super) fn new(file: &str, text: &str, piece: &DocumentText<'_>, diagnostic: Diagnostic) -> Self {
        let (line, column) = match diagnostic.location {
            Some(at) => (piece.lines_before + number(at.line()), number(at.column()).max(1)),
            None => (piece.first_line, 1),
        };
        // Computed from line and column, since some parser errors have no byte position.
        let start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
        let written = text[start..].lines().next().unwrap_or_default();
        let before: usize = written.chars().take(column - 1).map(char::len_utf8).sum();
        let rest = written[before..].trim_end();
        let span = diagnostic.location.and_then(|at| at.span().byte_len()).map_or(0, number);
        let length = if span == 0 || !rest.is_char_boundary(span) { rest.len() } else { span };
        let Diagnostic { message, hint, .. } = diagnostic;
        Self { file: file.to_owned(), line, column, offset: start + before, length, message, hint }
    }
}

/// Line numbers and byte offsets of a text in memory always fit.
fn number(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Converts a parser error to a message and a hint.
pub(super) fn parse_error(error: &Error) -> Diagnostic {
    let error = error.without_snippet();
    if let Error::AliasError { error, .. } = error {
        return parse_error(error);
    }
    let (message, hint) = message_and_hint(error);
    let location = error.location().filter(|location| location.line() > 0);
    Diagnostic { location, message, hint, is_of_whole: false }
}

fn message_and_hint(error: &Error) -> (String, String) {
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            (format!("there is no field '{field}' here"), suggestion::hint(field, expected))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            (format!("'{variant}' is not a known value"), suggestion::hint(variant, expected))
        }
        Error::SerdeMissingField { field, .. } => {
            (format!("the field '{field}' is missing"), format!("add '{field}: …' here"))
        }
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            (format!("{unexpected} is not valid here"), format!("write {expected}"))
        }
        Error::SerdeInvalidLength { len, expected, .. } => {
            (format!("the list here has {}", counted(*len, "entry")), format!("write {expected}"))
        }
        Error::DuplicateMappingKey { key, .. } => (
            format!("the field '{}' is written twice", key.as_deref().unwrap_or("?")),
            "keep one of the two".into(),
        ),
        // Specs raise these errors during deserialization, as "problem; hint".
        Error::Message { msg, .. } if msg.contains("; ") => {
            let (problem, hint) = msg.split_once("; ").unwrap_or((msg, SYNTAX_HINT));
            (problem.to_owned(), hint.to_owned())
        }
        other => {
            let (message, hint) = type_mismatch(other).unwrap_or_default();
            match message {
                "" => (DefaultMessageFormatter.format_message(other).into_owned(), SYNTAX_HINT.into()),
                message => (message.into(), hint.into()),
            }
        }
    }
}

/// Hint for most syntax errors: the parser notices them only after the faulty line.
const SYNTAX_HINT: &str = "check the indentation and the quotes of this line and the one before";

/// Returns the message and hint for valid YAML with the wrong type.
fn type_mismatch(error: &Error) -> Option<(&'static str, &'static str)> {
    Some(match error {
        Error::Unexpected { expected: "sequence start", .. } => {
            ("a list belongs here", "write lines that start with '- ', or [a, b]")
        }
        Error::Unexpected { expected: "mapping start", .. } => {
            ("fields belong here", "write lines such as 'name: value', or {name: value}")
        }
        Error::Unexpected { expected: "string scalar", .. } => ("a text belongs here", "write one value"),
        Error::NullIntoString { .. } => ("the value is missing", "write one, or leave the field out"),
        Error::InvalidScalar { ty: "bool" | "boolean", .. } | Error::InvalidBooleanStrict { .. } => {
            ("this is neither true nor false", "write true or false")
        }
        Error::InvalidScalar { .. } => ("this is not a number that fits", "write a whole number, 0 or more"),
        Error::UnknownAnchor { .. } => (
            "no anchor has this name",
            "put a text that starts with '*' in quotes, or define the anchor with '&'",
        ),
        _ => return None,
    })
}
