//! `fairmesh schema`: the JSON Schema of the documents that `apply` reads, for editors and pipelines.

use std::process::ExitCode;

use fairmesh_console::{failure::Failure, output};
use fairmesh_model::spec::Document;

/// URL that identifies the schema; nothing is fetched from it.
const ID: &str = "https://github.com/fairmesh/fairmesh/documents.schema.json";

/// Prints the schema.
pub fn run() -> Result<ExitCode, Failure> {
    let mut schema = schemars::schema_for!(Document);
    schema.insert("$id".into(), ID.into());
    schema.insert("title".into(), "Documents of Fairmesh".into());
    let text = serde_json::to_string_pretty(&schema).map_err(Failure::failed)?;
    output::write(&(text + "\n"))?;
    Ok(ExitCode::SUCCESS)
}
