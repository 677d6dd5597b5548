//! YAML files with one or more documents; each document names its `kind`.
//!
//! A file is accepted or refused as a whole. An error has a position (line, column, byte span) and a hint.

mod documents;
mod error;
mod ignore_kind;
mod kubernetes;
mod recovery;
mod value_position;

use fairmesh_model::{
    Invalid,
    spec::{self, ReadFields, Resource},
    suggestion,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_saphyr::{Options, Spanned, options::NonFiniteFloatPolicy};

use documents::DocumentText;
pub use error::ManifestError;
use error::{Diagnostic, parse_error};

/// One document of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The parsed spec.
    pub spec: spec::Document,
    /// The validated resource.
    pub resource: Resource,
    /// The document's first line in the file, from 1.
    pub line: usize,
}

/// Parses a file. Errors name it `file`; documents without content are skipped.
///
/// # Errors
/// The first error: YAML syntax, an unknown field or an invalid value.
pub fn parse(file: &str, text: &str) -> Result<Vec<Document>, ManifestError> {
    let read = |piece: &DocumentText<'_>| {
        document(piece).map_err(|refusal| ManifestError::new(file, text, piece, refusal))
    };
    documents::split(text).iter().map(read).collect()
}

/// Returns all errors of a file that [`parse`] refuses: up to twenty errors per document.
pub fn errors(file: &str, text: &str) -> Vec<ManifestError> {
    documents::split(text).iter().flat_map(|piece| recovery::errors(file, text, piece)).collect()
}

/// Parses a file with a single document of the caller's type, such as a scenario. `check` validates the document.
///
/// # Errors
/// The first error, as for [`parse`], or an error if the file does not have exactly one document.
pub fn read<T: DeserializeOwned>(
    file: &str,
    text: &str,
    check: impl FnOnce(&T) -> Result<(), Invalid>,
) -> Result<T, ManifestError> {
    let pieces = documents::split(text);
    let whole = DocumentText { text, offset: 0, lines_before: 0, first_line: 1 };
    let [piece] = pieces.as_slice() else {
        let diagnostic =
            Diagnostic::at_start(format!("there are {} documents in it", pieces.len()), "write one");
        return Err(ManifestError::new(file, text, &whole, diagnostic));
    };
    let read = body::<T>(piece).and_then(|value| match check(&value) {
        Ok(()) => Ok(value),
        Err(invalid) => Err(value_position::locate(piece.text, invalid)),
    });
    read.map_err(|diagnostic| ManifestError::new(file, text, piece, diagnostic))
}

/// Returns the `kind` of a file with a single document. `None` for any other number of documents, which [`read`]
/// reports.
///
/// # Errors
/// [`ManifestError`] for invalid YAML, and for a kind that is not in `known`.
pub fn kind_of(file: &str, text: &str, known: &[&str]) -> Result<Option<String>, ManifestError> {
    let pieces = documents::split(text);
    let [piece] = pieces.as_slice() else { return Ok(None) };
    let field: Result<KindField, Diagnostic> =
        serde_saphyr::from_str_with_options(piece.text, options()).map_err(|e| parse_error(&e));
    let kind = field.map_err(|diagnostic| ManifestError::new(file, text, piece, diagnostic))?.kind;
    match kind {
        Some(kind) if !known.contains(&kind.value.as_str()) => {
            let problem = format!("kind '{}' is not expected here", kind.value);
            let diagnostic = Diagnostic::at(kind.referenced, problem, suggestion::hint(&kind.value, known));
            Err(ManifestError::new(file, text, piece, diagnostic))
        }
        kind => Ok(kind.map(|kind| kind.value)),
    }
}

/// The field `kind` of a document.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KindField {
    kind: Option<Spanned<String>>,
    api_version: Option<Spanned<String>>,
}

fn document(piece: &DocumentText<'_>) -> Result<Document, Diagnostic> {
    let field: KindField =
        serde_saphyr::from_str_with_options(piece.text, options()).map_err(|e| parse_error(&e))?;
    if let Some(version) = &field.api_version {
        return Err(kubernetes::diagnostic(version, field.kind.as_ref()));
    }
    let Some(kind) = field.kind else {
        let hint =
            format!("add a line such as 'kind: Service'; kinds are {}", spec::Document::KINDS.join(", "));
        return Err(Diagnostic::at_start("the document has no kind", hint));
    };
    let Some(spec) = spec::Document::read(&kind.value, piece) else {
        let hint = suggestion::hint(&kind.value, spec::Document::KINDS);
        return Err(Diagnostic::at(kind.referenced, format!("there is no kind '{}'", kind.value), hint));
    };
    let spec = spec?;
    let resource = spec.validate().map_err(|invalid| value_position::locate(piece.text, invalid))?;
    Ok(Document { spec, resource, line: piece.first_line })
}

impl ReadFields for &DocumentText<'_> {
    type Error = Diagnostic;

    fn read<T: DeserializeOwned>(self) -> Result<T, Diagnostic> {
        body(self)
    }
}

/// Deserializes all fields except `kind`.
fn body<'de, T: Deserialize<'de>>(piece: &DocumentText<'de>) -> Result<T, Diagnostic> {
    let read = |deserializer: serde_saphyr::Deserializer<'de, '_>| {
        T::deserialize(ignore_kind::IgnoreKind(deserializer))
    };
    serde_saphyr::with_deserializer_from_str_with_options(piece.text, options(), read)
        .map_err(|e| parse_error(&e))
}

/// Parser limits: room for a shard map with about 100,000 shards, with bounded depth and aliases, so that no file
/// exhausts memory.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 20_000_000,
            max_nodes: 10_000_000,
            max_total_scalar_bytes: 1 << 30,
            max_depth: 64,
        },
        with_snippet: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    }
}

#[cfg(test)]
mod tests;
