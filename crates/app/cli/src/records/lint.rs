//! `fairmesh lint`: checks YAML files without a control plane.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{Files, Format, OutputArgs},
    failure::Failure,
    output,
};
use fairmesh_model::counted;
use serde_json::json;

use super::apply::warnings;
use crate::manifests;

/// Exit code for warnings.
const EXIT_WARNED: u8 = 3;

/// Arguments of `fairmesh lint`.
#[derive(Debug, Args)]
pub struct LintArgs {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Reads the files as `apply` does, and prints its warnings. Only the files are known.
pub fn run(args: LintArgs) -> Result<ExitCode, Failure> {
    let documents = manifests::load(&args.files)?;
    let resources: Vec<_> = documents.iter().map(|one| &one.resource).collect();
    let warnings = warnings::warnings(None, &resources);
    match args.output_args.format() {
        Format::Table => {
            let lines: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
            let end =
                format!("{}, {}\n", counted(documents.len(), "document"), counted(warnings.len(), "warning"));
            output::write(&(lines + &end))?;
        }
        _ => output::write(&format!("{}\n", json!({ "documents": documents.len(), "warnings": warnings })))?,
    }
    Ok(if warnings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_WARNED) })
}
