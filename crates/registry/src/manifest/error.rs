use fairmesh_model::{counted, suggestion};
use serde_saphyr::{DefaultMessageFormatter, Error, Location, MessageFormatter};

use super::pieces::Piece;

/// Why a file is refused, and where. Line and column count from 1; the span is in bytes of the file, for labels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}; {hint}")]
pub struct ManifestError {
    /// What the caller called the file.
    pub file: String,
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
    /// Where the span starts.
    pub offset: usize,
    /// How long it is; never past the end of the line.
    pub length: usize,
    /// What is wrong, quoting the value, with the path of the field where there is one.
    pub message: String,
    /// What to write instead.
    pub hint: String,
}

/// A refusal within one document, before it is known where the document lies in its file.
pub(super) struct Place {
    location: Option<Location>,
    message: String,
    hint: String,
}

impl Place {
    pub(super) fn at(location: Location, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let location = Some(location).filter(|location| location.line() > 0);
        Self { location, message: message.into(), hint: hint.into() }
    }

    /// Wrong as a whole: shown at the first line of the document.
    pub(super) fn at_start(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { location: None, message: message.into(), hint: hint.into() }
    }
}

impl ManifestError {
    pub(super) fn new(file: &str, text: &str, piece: &Piece<'_>, place: Place) -> Self {
        let (line, column) = match place.location {
            Some(at) => (piece.lines_before + number(at.line()), number(at.column()).max(1)),
            None => (piece.first_line, 1),
        };
        // By line and column, so that a parser that knows no bytes loses nothing.
        let start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
        let written = text[start..].lines().next().unwrap_or_default();
        let before: usize = written.chars().take(column - 1).map(char::len_utf8).sum();
        let rest = written[before..].trim_end();
        let told = place.location.and_then(|at| at.span().byte_len()).map_or(0, number);
        let length = if told == 0 || !rest.is_char_boundary(told) { rest.len() } else { told };
        let Place { message, hint, .. } = place;
        Self { file: file.to_owned(), line, column, offset: start + before, length, message, hint }
    }
}

/// Lines and bytes of a text in memory always fit.
fn number(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Says what the parser found in words for people, with a hint.
pub(super) fn refusal(error: &Error) -> Place {
    let error = error.without_snippet();
    if let Error::AliasError { error, .. } = error {
        return refusal(error);
    }
    let (message, hint) = words(error);
    Place { location: error.location().filter(|location| location.line() > 0), message, hint }
}

fn words(error: &Error) -> (String, String) {
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            (format!("there is no field '{field}' here"), suggestion::hint(field, expected))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            (format!("'{variant}' is not known here"), suggestion::hint(variant, expected))
        }
        Error::SerdeMissingField { field, .. } => {
            (format!("the field '{field}' is missing"), format!("add '{field}: …' here"))
        }
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            (format!("{unexpected} cannot stand here"), format!("write {expected}"))
        }
        Error::SerdeInvalidLength { len, expected, .. } => {
            (format!("the list here has {}", counted(*len, "entry")), format!("write {expected}"))
        }
        Error::DuplicateMappingKey { key, .. } => (
            format!("the field '{}' is written twice", key.as_deref().unwrap_or("?")),
            "keep one of the two".into(),
        ),
        // What specs themselves refuse while they are read.
        Error::Message { msg, .. } if msg.contains("; ") => {
            let (problem, hint) = msg.split_once("; ").unwrap_or((msg, FORM));
            (problem.to_owned(), hint.to_owned())
        }
        other => {
            let (message, hint) = shape(other).unwrap_or_default();
            match message {
                "" => (DefaultMessageFormatter.format_message(other).into_owned(), FORM.into()),
                message => (message.into(), hint.into()),
            }
        }
    }
}

/// What helps against most slips of form: the parser notices them where they end.
const FORM: &str = "check the indentation and the quotes of this line and the one before";

/// Refusals of something that is good YAML and the wrong sort of thing.
fn shape(error: &Error) -> Option<(&'static str, &'static str)> {
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
