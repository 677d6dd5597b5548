//! Files that people write: YAML, one document after another, each with its `kind`.
//!
//! A file is taken whole or refused whole. A refusal says where (line, column, byte span) and what to write instead.

mod error;
mod kind;
mod pieces;
mod tree;

use fairmesh_model::{
    Invalid,
    spec::{self, EndpointsSpec, HostsSpec, Plan, PolicySpec, ServiceSpec, ShardMapSpec, TopologySpec},
    suggestion,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_saphyr::{Options, Spanned, options::NonFiniteFloatPolicy};

pub use error::ManifestError;
use error::{Place, refusal};
use pieces::Piece;

/// One document of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// As written.
    pub spec: spec::Document,
    /// As validated.
    pub plan: Plan,
    /// The line in the file where it starts, from 1.
    pub line: usize,
}

/// Reads a file. `file` is what errors call it; documents without content are skipped.
///
/// # Errors
/// The first thing that is wrong, be it the form of the YAML, an unknown field or a value.
pub fn parse(file: &str, text: &str) -> Result<Vec<Document>, ManifestError> {
    let read =
        |piece: &Piece<'_>| document(piece).map_err(|refusal| ManifestError::new(file, text, piece, refusal));
    pieces::split(text).iter().map(read).collect()
}

/// Reads a file that holds one document of a sort of its own, such as a scenario; `check` says what its type does not.
///
/// # Errors
/// The first thing that is wrong, as [`parse`] says it; and a file that holds none or several.
pub fn read<T: DeserializeOwned>(
    file: &str,
    text: &str,
    check: impl FnOnce(&T) -> Result<(), Invalid>,
) -> Result<T, ManifestError> {
    let pieces = pieces::split(text);
    let whole = Piece { text, offset: 0, lines_before: 0, first_line: 1 };
    let [piece] = pieces.as_slice() else {
        let place = Place::at_start(format!("there are {} documents in it", pieces.len()), "write one");
        return Err(ManifestError::new(file, text, &whole, place));
    };
    let read = body::<T>(piece).and_then(|value| match check(&value) {
        Ok(()) => Ok(value),
        Err(invalid) => Err(tree::place(piece.text, invalid)),
    });
    read.map_err(|place| ManifestError::new(file, text, piece, place))
}

/// The kind that the one document of a file says it is of; `None` where it says none, or there is not one document, which
/// [`read`] complains of.
///
/// # Errors
/// [`ManifestError`] for what is not YAML, and for a kind that is not `known`.
pub fn kind_of(file: &str, text: &str, known: &[&str]) -> Result<Option<String>, ManifestError> {
    let pieces = pieces::split(text);
    let [piece] = pieces.as_slice() else { return Ok(None) };
    let head: Result<Head, Place> =
        serde_saphyr::from_str_with_options(piece.text, options()).map_err(|e| refusal(&e));
    let kind = head.map_err(|place| ManifestError::new(file, text, piece, place))?.kind;
    match kind {
        Some(kind) if !known.contains(&kind.value.as_str()) => {
            let problem = format!("there is no kind '{}' here", kind.value);
            let place = Place::at(kind.referenced, problem, suggestion::hint(&kind.value, known));
            Err(ManifestError::new(file, text, piece, place))
        }
        kind => Ok(kind.map(|kind| kind.value)),
    }
}

/// The part of a document that says what the rest is.
#[derive(Deserialize)]
struct Head {
    kind: Option<Spanned<String>>,
}

fn document(piece: &Piece<'_>) -> Result<Document, Place> {
    let head: Head = serde_saphyr::from_str_with_options(piece.text, options()).map_err(|e| refusal(&e))?;
    let Some(kind) = head.kind else {
        let hint =
            format!("add a line such as 'kind: Service'; kinds are {}", spec::Document::KINDS.join(", "));
        return Err(Place::at_start("the document has no kind", hint));
    };
    let spec = match kind.value.as_str() {
        "Service" => spec::Document::Service(body::<ServiceSpec>(piece)?),
        "Policy" => spec::Document::Policy(body::<PolicySpec>(piece)?),
        "Topology" => spec::Document::Topology(body::<TopologySpec>(piece)?),
        "Hosts" => spec::Document::Hosts(body::<HostsSpec>(piece)?),
        "ShardMap" => spec::Document::ShardMap(body::<ShardMapSpec>(piece)?),
        "Endpoints" => spec::Document::Endpoints(body::<EndpointsSpec>(piece)?),
        unknown => {
            let hint = suggestion::hint(unknown, &spec::Document::KINDS);
            return Err(Place::at(kind.referenced, format!("there is no kind '{unknown}'"), hint));
        }
    };
    let plan = spec.plan().map_err(|invalid| tree::place(piece.text, invalid))?;
    Ok(Document { spec, plan, line: piece.first_line })
}

/// Reads everything but the kind.
fn body<'de, T: Deserialize<'de>>(piece: &Piece<'de>) -> Result<T, Place> {
    let read =
        |deserializer: serde_saphyr::Deserializer<'de, '_>| T::deserialize(kind::Ignoring(deserializer));
    serde_saphyr::with_deserializer_from_str_with_options(piece.text, options(), read)
        .map_err(|e| refusal(&e))
}

/// Room for a shard map of some 100,000 shards; depth and aliases stay bounded, so that no file can exhaust us.
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
